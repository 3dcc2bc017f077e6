"""A whole run, with real processes in two regions, whose rewards are a user's own function that hangs and crashes."""

import json
from pathlib import Path

import pytest

from tests.support.processes.demo import TINY, TWO_REGIONS, audit, run_demo

pytestmark = [pytest.mark.processes, pytest.mark.slow]

OWN = """
import hashlib, os, time

def score(prompts, completions, answer):
    drawn = [hashlib.blake2b((p + c).encode()).digest()[0] for p, c in zip(prompts, completions)]
    if any(each < 2 for each in drawn):
        time.sleep(3600)
    if any(each == 2 for each in drawn):
        os._exit(1)
    return [float(c.strip() == a) for c, a in zip(completions, answer)]
"""

JOB = """
name: own
environment: {name: spell_backward, config: {min_word_len: 4, max_word_len: 4}}
data: {size: 2000}
algorithm: {group_size: 8}
sampling: {max_new_tokens: 6, prompt_tokens: 8}
train: {groups_per_step: 8}
steps: 4
reward:
  functions:
    - {path: "my_rewards:score"}
    - {name: length, target: 2, max: 6, weight: 0.1}
  timeout_s: 0.5
"""


def test_a_reward_that_hangs_or_crashes_costs_its_episodes_and_neither_workers_nor_the_run(tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(OWN)
    (tmp_path / "job.yaml").write_text(JOB)
    summary = run_demo(tmp_path, "--job", str(tmp_path / "job.yaml"), "--staleness", "1", TWO_REGIONS, *TINY[1:])
    assert summary["steps"] == 4
    run = tmp_path / "runs" / summary["job_id"]
    assert audit(run)["clean"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "step"]
    assert len(steps) == 4
    failures = {name: sum(step[name] for step in steps) for name in ("reward_timeouts", "reward_crashes")}
    # Of the completions, 2 in 256 hang and 1 in 256 crash; several hundred were sampled, those of evaluations included.
    assert failures["reward_timeouts"] > 0
    assert sum(step["reward_failures"] for step in steps) == sum(failures.values())
    assert all(step["failed_groups"] == step["lost_leases"] == 0 for step in steps), "a failure cost more than itself"
    for step in steps:
        parts = {name: value for name, value in step.items() if name.startswith("reward_part/")}
        assert set(parts) == {"reward_part/my_rewards:score_mean", "reward_part/length_mean"}
        weighted = parts["reward_part/my_rewards:score_mean"] + 0.1 * parts["reward_part/length_mean"]
        assert step["reward_mean"] == pytest.approx(weighted, abs=1e-6)
    logs = "".join(log.read_text() for log in (run / "logs").glob("rollout-*.log"))
    assert "reward_process_lost" in logs
    assert "task_crashed" not in logs
