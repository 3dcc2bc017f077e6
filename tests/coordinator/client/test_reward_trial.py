"""The child process that tries rewards: tests of commands ask in place of it what it would answer."""

import json

import pytest

from coordinator.client.reward_trial import try_rewards
from periplus.job.job_file import JobFile

JOB = {
    "schema": "periplus.job/1",
    "name": "sums",
    "environment": {"name": "chain_sum"},
    "data": {"size": 128},
    "reward": {"functions": [{"name": "exact", "weight": 2}]},
}


@pytest.mark.processes
def test_a_child_says_what_functions_say_of_the_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    said = try_rewards(JobFile.from_json(json.dumps(JOB)))
    assert said == ("rewards of the first problem's own answer:", "  exact: 1, weight 2")
