"""What the two measuring processes of a profile share: their request, the lines of their results, and how they repeat.

An agent starts each with a file, and reads one JSON object a line from its standard output. Each object has one key,
which says what the value is. Everything else that the process prints goes to standard error. A process that cannot go
on writes the key `problem` last, and ends with the exit code 2.
"""

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

import click
import psutil

from periplus.config import loading
from periplus.errors import ConfigError, explained_error
from periplus.job.job_file import JobFile
from periplus.job.model_section import BUILTIN, builtin_config

REPETITIONS = 3
"""Most repetitions of a row. Chosen by hand: the median of three leaves out one that another process disturbed."""

REPETITIONS_S = 12.0
"""Seconds of a row's repetitions beyond which none is added. Chosen by hand, so that eight rows take two minutes."""

PROBLEM_CODE = 2
"""Exit code of a process that could not measure all."""

Say = Callable[[str, Any], None]
"""Writes one result, under the key that says what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """What is measured: a job's work for a model, of which only the configuration is known.

    `model_config` is the text of the model's `config.json`. Each process computes with `num_threads` threads. The first
    `num_skipped` rows were measured before.
    """

    job: JobFile
    model_config: str
    num_threads: int
    num_skipped: int

    @classmethod
    def from_json(cls, text: str, num_skipped: int = 0) -> "ProfileRequest":
        """Return the request of a file with the keys `job_json`, `model_config` and `num_threads`.

        An empty `model_config` is that of the job's built-in model. Raises: ConfigError.
        """
        tree: Any = loading.parse_json(text, "the request")
        try:
            job_json, config, num_threads = tree["job_json"], tree["model_config"], int(tree["num_threads"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the request lacks a key or has another type: {error!r}") from error
        job = JobFile.from_json(job_json if isinstance(job_json, str) else json.dumps(job_json))
        if not config and job.model.path not in BUILTIN:
            raise ConfigError(f"the request has no configuration of the model {job.model.path!r}; give its config.json")
        config = config or json.dumps(builtin_config(job.model.path))
        return cls(job=job, model_config=config, num_threads=num_threads, num_skipped=num_skipped)


def measuring_command(measure: Callable[[ProfileRequest, Say], None]) -> click.Command:
    """Return the command of a measuring process: `FILE [--skip N]`."""

    @click.command()
    @click.argument("file", type=click.Path(path_type=Path))
    @click.option("--skip", type=click.IntRange(min=0), default=0, help="Rows that were measured before.")
    def main(file: Path, skip: int) -> None:
        """Measure what FILE asks for, and print the results as JSON lines."""
        with result_lines() as say:
            try:
                measure(ProfileRequest.from_json(file.read_text(encoding="utf-8"), skip), say)
            except Exception as error:  # libraries raise what they like for a model that they cannot make
                say("problem", explained_error(error)[:2000])
                sys.excepthook(type(error), error, error.__traceback__)
                sys.exit(PROBLEM_CODE)

    return main


@contextmanager
def result_lines() -> Iterator[Say]:
    """Take over standard output for results. What this process and its children print goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "w", encoding="utf-8") as lines:

        def say(key: str, value: Any) -> None:
            lines.write(f"{json.dumps({key: value})}\n")
            lines.flush()

        yield say


def is_enough(seconds: Sequence[float]) -> bool:
    """Return whether a row that was repeated in these seconds is not to be repeated again."""
    return len(seconds) >= REPETITIONS or (bool(seconds) and sum(seconds) + seconds[-1] > REPETITIONS_S)


def repeated(run: Callable[[], float]) -> list[float]:
    """Call `run`, which returns the seconds that it measured, until that is enough, and return them."""
    seconds: list[float] = []
    while not is_enough(seconds):
        seconds.append(run())
    return seconds


def spread_of(seconds: Sequence[float]) -> float:
    """Return the largest less the smallest of some seconds, over their median."""
    return (max(seconds) - min(seconds)) / statistics.median(seconds)


def process_age_s() -> float:
    """Return the seconds since this process was started by its parent, imports included."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def host_peak_bytes() -> int:
    """Return the most memory that this process had so far in bytes, and what its children have now."""
    children = sum(child.memory_info().rss for child in psutil.Process().children(recursive=True))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + children


def tree_cpu_s() -> float:
    """Return the processor seconds that this process and its children that run have used."""
    here = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (here, *here.children(recursive=True)))


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of those of these packages that are installed."""
    found = {"python": python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
