"""Which job the demo runs: the example file, or the job of the run that it resumes. Pure but for reading the files."""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from coordinator.client.runs import Checkpoint, newest_checkpoint
from periplus.errors import ConfigError
from periplus.job import JobFile, load_job
from periplus.run_directory import RunDirectory

_HERE = Path(__file__).parent
EXAMPLE = "spelling.yaml"
"""Lies in examples/ of a checkout; the wheel packs a copy beside this module."""


def demo_job(file: Path | None, overrides: Sequence[str]) -> JobFile:
    """A fresh job. Raises: ConfigError."""
    packed, checkout = _HERE / EXAMPLE, _HERE.parents[1] / "examples" / EXAMPLE
    return load_job(file or (packed if packed.exists() else checkout), overrides)


def resumed_job(run_dir: Path) -> tuple[JobFile, Checkpoint]:
    """The job of an earlier run and its newest checkpoint. Raises: NotFound, ConfigError."""
    checkpoint = newest_checkpoint(run_dir)
    config = RunDirectory(run_dir).config
    try:
        tree = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{config} cannot be read ({error}); --resume needs a run directory as a run left it"
        ) from error
    job = JobFile.from_json(json.dumps(tree))
    output = job.output.model_copy(update={"dir": str(run_dir.absolute().parent)})  # wherever this command runs now
    return job.model_copy(update={"output": output}), checkpoint
