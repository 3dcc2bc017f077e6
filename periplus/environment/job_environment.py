"""Builds the environment of a job and the encoder of its prompts, identically in the trainer and in each worker.

The trainer reads the job's data sets, and sends the problems to the workers as one file of the bundle. A task of
reasoning-gym, or an environment of several turns, makes the same problems everywhere.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from periplus.environment import gym_tasks
from periplus.environment.datasets.listed import ListedProblems, problem_file, read_problem_file
from periplus.environment.datasets.problems import read_problems
from periplus.environment.environment import Environment
from periplus.environment.prompts import PromptEncoder
from periplus.environment.turns.registry import load_turn_tasks
from periplus.job.data_section import makes_problems
from periplus.job.job_file import JobFile

DATA_FILE = "problems.jsonl"
"""Name of the file with the job's problems in the bundle of files that workers receive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerEnvironment:
    """What the trainer has of a job's environment: the file for workers, and sentences on what was read.

    `file` is None if workers can make the problems themselves.
    """

    environment: Environment
    file: bytes | None
    read: tuple[str, ...] = ()


def trainer_environment(job: JobFile) -> TrainerEnvironment:
    """Return the environment of a resolved job where its data sets are. Raises: ConfigError if it cannot be built."""
    if makes_problems(job.environment):
        return TrainerEnvironment(environment=_made(job), file=None)
    read = read_problems(job.data)
    items = tuple(item for dataset in read for item in dataset.items)
    return TrainerEnvironment(
        environment=ListedProblems(items=items), file=problem_file(items), read=tuple(each.summary for each in read)
    )


def worker_environment(job: JobFile, folder: Path) -> Environment:
    """Return the environment of a resolved job from the files of its bundle. Raises: ConfigError."""
    return _made(job) if makes_problems(job.environment) else read_problem_file(folder / DATA_FILE)


def prompt_encoder(job: JobFile, tokenizer: Any) -> PromptEncoder:
    """Return the encoder of a job's prompts with its model's tokenizer."""
    model = job.model
    return PromptEncoder(tokenizer=tokenizer, template=model.chat_template, arguments=model.chat_template_kwargs)


def _made(job: JobFile) -> Environment:
    section, size = job.environment, job.data.size
    assert section is not None
    assert section.name is not None
    assert size is not None, "resolve() fills it in"
    if section.has_turns:
        return load_turn_tasks(section.name, section.config, seed=job.seed, size=size)
    return gym_tasks.load(section.name, section.config, job.seed, size)
