"""The check of a job's inputs without its child process, which imports for seconds what a test's process has imported.

That the child is started, answers and may be killed is tested in `tests/trainer/test_preflight.py`.
"""

from typing import Any

import pytest

from periplus.job.job_file import JobFile
from trainer.preflight import answer


def ask_here(job: JobFile) -> dict[str, Any]:
    return answer(job.to_json())


def check_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let submitting commands and scripts check jobs in this process, until the test ends."""
    monkeypatch.setattr("coordinator.client.preflight._ask_child", ask_here)
