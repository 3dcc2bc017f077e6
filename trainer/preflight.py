"""Everything of a job that can be wrong before a weight is read: one function for the trainer's start and for the
command that submits.

`python -m trainer.preflight` is that command's child: a job as JSON on standard input, one JSON object on standard
output, which is either an error (`reason`, `message`) or what was found out (`prompts`, `problems`). It is a process of
its own because the control plane imports no tokenizer, and because an environment with hostile settings may take any
time and any memory. Torch and transformers, seconds of imports, are loaded only for a model that is a directory.
"""

import json
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from periplus import clock, errors
from periplus.environment.environment import Environment
from periplus.environment.of_job import environment_of
from periplus.errors import PeriplusError
from periplus.job.inputs import check_inputs
from periplus.job.job_file import BUILTIN_PREFIX, JobFile
from trainer.data.characters import character_tokenizer
from trainer.data.dataset import Prompt, read_prompts, split_prompts

BUDGET_S = 5.0
"""Processor seconds after which no further prompt is made and encoded. The demo's 12,000 take 0.3 s; some tasks of
reasoning-gym need 10 ms and more for each problem, and the trainer reads all of them anyway."""

LIMIT_S = 20
"""Processor seconds after which the kernel ends this process (SIGXCPU): one problem of an environment with hostile
settings may take hours inside one call. The imports of torch and transformers take 4 s, BUDGET_S is spent beside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a job trains on, before the problems are split. `prompts`: those that there was time for."""

    tokenizer: Any
    environment: Environment
    prompts: list[Prompt]


class CharacterTokenizer:
    """The built-in models' tokenizer as `encode_prompt` calls it."""

    def __init__(self) -> None:
        self._inner: Tokenizer = character_tokenizer()

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": self._inner.encode(text).ids}


def checked_inputs(job: JobFile, model_dir: Path | None, is_time_up: Callable[[], bool] = lambda: False) -> Inputs:
    """Check model, data and environment against each other and against the job.

    `model_dir` is None for a built-in model that has not been made yet. Raises: ConfigError.
    """
    check_inputs(job)
    tokenizer: Any
    if model_dir is None:
        tokenizer = CharacterTokenizer()
    else:
        from trainer.data.pretrained import check_checkpoint, load_tokenizer

        check_checkpoint(model_dir)
        tokenizer = load_tokenizer(model_dir)
    environment = environment_of(job, Path(job.data.path) if job.data.path else None)
    prompts = read_prompts(environment, job, tokenizer, is_time_up)
    return Inputs(tokenizer=tokenizer, environment=environment, prompts=prompts)


def answer(job_json: str) -> dict[str, Any]:
    """What the child process prints."""
    try:
        job = JobFile.from_json(job_json)
        model_dir = None if job.model.path.startswith(BUILTIN_PREFIX) else Path(job.model.path)
        started_s = clock.process_s()
        inputs = checked_inputs(job, model_dir, lambda: clock.process_s() - started_s > BUDGET_S)
        if len(inputs.prompts) == len(inputs.environment):
            split_prompts(inputs.prompts, job)
    except PeriplusError as error:
        return {"reason": errors.reason(error), "message": str(error)}
    return {"prompts": len(inputs.prompts), "problems": len(inputs.environment)}


def main() -> None:
    """Answer standard input on standard output, within LIMIT_S."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S + 1))
    sys.stdout.write(json.dumps(answer(sys.stdin.read())) + "\n")


if __name__ == "__main__":
    main()
