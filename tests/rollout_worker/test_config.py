"""What a worker knows of its task."""

import json

import pytest

from periplus.job.job_file import JobFile
from periplus.values.task import Role, TaskSpec
from rollout_worker.config import WorkerConfig
from tests.support.keys import JOB_SECRET


@pytest.mark.parametrize(("num_workers", "share"), [((), 8), ((1,), 8), ((2,), 4), ((2, 1), 4), ((9,), 4)])
def test_the_workers_of_the_plan_share_the_samples_of_a_step(num_workers: tuple[int, ...], share: int) -> None:
    job = JobFile.model_validate(
        {
            "name": "a",
            "environment": {"name": "chain_sum"},
            "train": {"groups_per_step": 2},
            "algorithm": {"name": "grpo", "group_size": 4},
        }
    )
    plan = [{"task": "rollout", "region": f"r{index}", "num_workers": num} for index, num in enumerate(num_workers)]
    task = TaskSpec(
        task_id="j/r0/rollout-0",
        job_id="j",
        role=Role.ROLLOUT,
        region="r0",
        job_json=job.to_json(),
        plan_json=json.dumps({"assignments": [{"task": "trainer", "region": "r0", "num_workers": 1}, *plan]}),
        fork=0,
        resume_from="",
        gateway="127.0.0.1:1",
        run_dir="/r",
        status_file="/r/s",
        num_threads=1,
        authority_key="ab" * 32,
        job_secret=JOB_SECRET,
    )
    assert WorkerConfig.of_task(task).step_share == share
