"""What a trainer's task decides of its job."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from periplus.values.task import Role
from tests.support.tiny_job import task_of, tiny_job
from trainer.config import TrainerConfig


@pytest.mark.parametrize(
    ("of_job", "of_plan", "expected"),
    [("auto", "hybrid", "hybrid"), ("full", "hybrid", "full"), ("auto", "", "auto"), ("auto", None, "auto")],
)
def test_a_plan_decides_the_sharding_that_the_job_leaves_open(
    tmp_path: Path, of_job: str, of_plan: str | None, expected: str
) -> None:
    job = tiny_job(tmp_path, train={"devices": 1, "sharding": of_job})
    rows = [{"task": "rollout", "sharding": "full"}, {"task": "trainer", "sharding": of_plan}]
    plan = "" if of_plan is None else json.dumps({"assignments": rows})
    task = replace(task_of(job, Role.TRAINER, tmp_path, gateway="127.0.0.1:1"), plan_json=plan, data=4)
    train = TrainerConfig.of_task(task).job.train
    assert (train.devices, train.sharding) == (4, expected)
