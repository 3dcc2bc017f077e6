"""The child process that tries rewards: tests of commands ask in place of it what it would answer."""

from pathlib import Path

import pytest

from coordinator.client.reward_trial import try_rewards
from periplus.job.job_file import load_job

JOB_YAML = "name: sums\nenvironment: {name: chain_sum}\ndata: {size: 128}\neval: {num_prompts: 16}\n"


@pytest.mark.processes
def test_a_child_says_what_a_function_says_of_the_first_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    path = tmp_path / "job.yaml"
    path.write_text(JOB_YAML + "reward: {functions: [{name: exact, weight: 2}]}\n")
    said = try_rewards(load_job(path))
    assert said == ("rewards of the first problem's own answer:", "  exact: 1, weight 2")
