"""Builds the environment of a job and encodes its prompts, identically in the trainer and in every rollout worker."""

from pathlib import Path
from typing import Any

from periplus.environment import gym_tasks, jsonl
from periplus.environment.environment import Environment, Item
from periplus.job.job_file import JobFile

DATA_FILE = "data.jsonl"
"""Name of the job's data file in the bundle of files that workers receive."""


def environment_of(job: JobFile, data_file: Path | None) -> Environment:
    """Return the environment of a resolved job.

    `data_file` is the path of the job's JSONL file on this machine, or None if the job has none.
    Raises: ConfigError if the environment cannot be built.
    """
    if job.environment is not None:
        assert job.data.size is not None, "resolve() fills it in"
        return gym_tasks.load(job.environment.name, job.environment.config, job.seed, job.data.size)
    assert data_file is not None, "resolve() demands exactly one of environment and data.path"
    return jsonl.load(data_file)


def encode_prompt(tokenizer: Any, item: Item) -> tuple[int, ...]:
    """Return the token ids of a problem's prompt up to where the model's answer begins.

    The messages are framed by the tokenizer's chat template. A tokenizer without one encodes the prompt as plain text.
    """
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": message.role, "content": message.content} for message in item.messages]
        messages = messages or [{"role": "user", "content": item.prompt}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    else:
        ids = tokenizer(item.prompt)["input_ids"]
    return tuple(int(token) for token in ids)
