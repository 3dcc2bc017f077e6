"""A job small enough to train in a test, on a real Qwen3: any completion without a visible character is right.

No answer says so, since jobs refuse empty ones, but a reward function that reads none.
"""

import json
from pathlib import Path
from typing import Any

from periplus.job.job_file import JobFile, resolve
from periplus.values.task import Role, TaskSpec
from tests.support.keys import AUTHORITY, JOB_SECRET

NUM_PROBLEMS = 40

REWARDS = ({"name": "regex", "pattern": r"\s*", "where": "whole"},)


def tiny_job(folder: Path, **overrides: Any) -> JobFile:
    """Return a resolved job of one new token a sample; 7 of the 105 symbols are white space or no text."""
    data = folder / "problems.jsonl"
    lines = [json.dumps({"prompt": f"{number}?", "solution": "a"}) for number in range(NUM_PROBLEMS)]
    data.write_text("\n".join(lines))
    sections: dict[str, Any] = {
        "name": "tiny",
        "data": {"path": str(data), "solution_column": "solution"},
        "reward": {"functions": REWARDS, "recheck_share": 0.0},
        "seed": 1,
        "staleness": 0,
        "steps": 2,
        "algorithm": {"group_size": 8},
        "sampling": {"max_new_tokens": 1, "prompt_tokens": 8},
        "optimizer": {"lr": 1e-2},
        "train": {"groups_per_step": 4},
        "eval": {"num_prompts": 8},
        "checkpoint": {"every_steps": 0},
    }
    return resolve(JobFile.model_validate(sections | overrides))


def task_of(job: JobFile, role: Role, folder: Path, *, gateway: str = "", fork: int = 0, task_id: str = "") -> TaskSpec:
    return TaskSpec(
        task_id=task_id or f"job-1/home/{role}",
        job_id="job-1",
        role=role,
        region="home",
        job_json=job.to_json(),
        plan_json="",
        fork=fork,
        resume_from="",
        gateway=gateway,
        run_dir=str(folder / "run"),
        status_file=str(folder / "status.json"),
        num_threads=1,
        authority_key=AUTHORITY.public_key.hex(),
        job_secret=JOB_SECRET,
    )
