"""From a job to its environment and its prompts' tokens: the same in the trainer and in every rollout worker."""

from pathlib import Path
from typing import Any

from periplus.environment import gym_tasks, jsonl
from periplus.environment.environment import Environment
from periplus.job.job_file import JobFile

DATA_FILE = "data.jsonl"
"""Name of the job's data file within the bundle that workers receive."""


def environment_of(job: JobFile, data_file: Path | None) -> Environment:
    """The environment that the job names; `data_file` is where its JSONL lies on this machine, if it has one.

    Raises: ConfigError.
    """
    if job.environment is not None:
        assert job.data.size is not None, "resolve() fills it in"
        return gym_tasks.load(job.environment.name, job.environment.config, job.seed, job.data.size)
    assert data_file is not None, "resolve() demands exactly one of environment and data.path"
    return jsonl.load(data_file)


def encode_prompt(tokenizer: Any, prompt: str) -> tuple[int, ...]:
    """Token ids up to where the model answers: by the tokenizer's chat template if it has one, else as plain text."""
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    else:
        ids = tokenizer(prompt)["input_ids"]
    return tuple(int(token) for token in ids)
