"""The files that a job names, checked without torch before the job is sent anywhere.

Until job bundles travel, `model.path` and `data.path` must be the same place for who submits and for the trainer's
region.
"""

import difflib
from pathlib import Path

from periplus.errors import ConfigError
from periplus.job import BUILTIN_PREFIX, JobFile

BUILTIN_MODELS = ("builtin:qwen3-tiny",)
"""What trainer/model.py can make (a test holds that they agree)."""


def check_inputs(job: JobFile) -> None:
    """Raises: ConfigError for a model or a data file that is not there or is none."""
    if job.model.path.startswith(BUILTIN_PREFIX):
        _check_builtin(job.model.path)
    else:
        check_model_dir(Path(job.model.path))
    if job.data.path is not None and not Path(job.data.path).is_file():
        raise ConfigError(f"data.path {job.data.path!r} is no file; give a JSONL file with prompt and answer")


def check_model_dir(path: Path) -> None:
    """Raises: ConfigError if `path` is no directory with a configuration, weights and a tokenizer."""
    if not path.is_dir():
        raise ConfigError(
            f"model.path {str(path)!r} is no directory; give a Hugging Face checkpoint directory or {BUILTIN_MODELS[0]}"
        )
    wanted = {
        "config.json": ("config.json",),
        "*.safetensors": ("*.safetensors",),
        "a tokenizer": ("tokenizer.json", "tokenizer_config.json"),
    }
    lacks = [what for what, names in wanted.items() if not any(any(path.glob(name)) for name in names)]
    if lacks:
        raise ConfigError(
            f"model.path {str(path)!r} is no Hugging Face checkpoint: it lacks {', '.join(lacks)}; save model and "
            "tokenizer there with save_pretrained"
        )


def _check_builtin(name: str) -> None:
    if name not in BUILTIN_MODELS:
        close = difflib.get_close_matches(name, BUILTIN_MODELS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(BUILTIN_MODELS)}"
        raise ConfigError(f"model.path {name!r} is no built-in model; {hint}")
