"""The checks of a job without their child processes, which import for seconds what a test's process has imported.

That the children are started, answer and may be killed is tested in `tests/trainer/test_preflight.py` and
`tests/coordinator/client/test_reward_trial.py`.
"""

from typing import Any

import pytest

from periplus.job.job_file import JobFile
from rollout_worker.rewards import check
from trainer.preflight import answer


def ask_here(job: JobFile) -> dict[str, Any]:
    return answer(job.to_json())


def check_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let submitting commands and scripts check jobs in this process, until the test ends."""
    monkeypatch.setattr("coordinator.client.preflight._ask_child", ask_here)
    monkeypatch.setattr("coordinator.client.reward_trial._ask_child", lambda job: check.answer(job.to_json()))
