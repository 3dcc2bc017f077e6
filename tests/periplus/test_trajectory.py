from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from periplus.errors import CorruptFrame
from periplus.policy import Policy
from periplus.trajectory import (
    Limits,
    PolicyRun,
    Purpose,
    StopReason,
    Trajectory,
    oldest_policy,
    policy_runs,
    validate,
)
from tests.support.strategies import trajectories

LIMITS = Limits(vocab_size=100, max_prompt_tokens=4, max_completion_tokens=3)
GOOD = Trajectory(
    lease_id=1,
    group=2,
    sample=3,
    item=4,
    purpose=Purpose.TRAIN,
    prompt_ids=(5, 6),
    completion_ids=(7, 8, 99),
    logprobs=np.array([-1.0, -0.5, 1e-6], np.float32),
    mask=(1, 1, 0),
    policies=(PolicyRun(Policy(1, 4), 1), PolicyRun(Policy(1, 5), 2)),
    reward=1.0,
    stop_reason=StopReason.EOS,
    worker_id="eu-west/rollout-0",
    generation_s=0.5,
)


def test_a_well_formed_trajectory_is_accepted() -> None:
    validate(GOOD, LIMITS)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompt_ids": (1,) * 5}, "number of prompt tokens (limit 4): 5"),
        ({"completion_ids": (1,) * 4}, "number of completion tokens (limit 3): 4"),
        ({"prompt_ids": (100,)}, "prompt id (vocabulary 100): 100"),
        ({"completion_ids": (1, -1, 2)}, "completion id: -1"),
        ({"logprobs": np.zeros(3, np.float64)}, "type of logprobs: float64"),
        ({"logprobs": np.zeros(2, np.float32)}, "number of logprobs: 2"),
        ({"logprobs": np.array([0, np.nan, 0], np.float32)}, "logprob: [nan]"),
        ({"logprobs": np.array([0, -np.inf, 0], np.float32)}, "logprob: [-inf]"),
        ({"logprobs": np.array([0, 0.5, 0], np.float32)}, "logprob: [0.5]"),
        ({"mask": (1, 1)}, "number of mask bits: 2"),
        ({"mask": (1, 2, 0)}, "mask: (1, 2, 0)"),
        ({"policies": (PolicyRun(Policy(1, 4), 2),)}, "tokens covered by policy runs: 2"),
        ({"policies": (PolicyRun(Policy(1, 4), 3), PolicyRun(Policy(1, 5), 0))}, "empty policy run"),
        ({"policies": (PolicyRun(Policy(1, 5), 1), PolicyRun(Policy(1, 4), 2))}, "do not rise: ['1.5', '1.4']"),
        ({"reward": float("nan")}, "reward: nan"),
        ({"generation_s": -1.0}, "generation_s: -1.0"),
        ({"worker_id": ""}, "worker_id"),
    ],
)
def test_each_defect_is_refused_by_name_and_value(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CorruptFrame) as caught:
        validate(replace(GOOD, **change), LIMITS)
    assert named in str(caught.value)


def test_an_abandoned_sample_without_tokens_is_accepted() -> None:
    none = np.empty(0, np.float32)
    validate(replace(GOOD, completion_ids=(), logprobs=none, mask=(), policies=()), LIMITS)


def test_the_oldest_policy_is_that_of_the_first_run() -> None:
    assert oldest_policy(GOOD) == Policy(1, 4)
    assert oldest_policy(replace(GOOD, policies=())) is None


def test_policies_of_tokens_are_run_length_encoded() -> None:
    old, new = Policy(0, 1), Policy(0, 2)
    assert policy_runs([old, old, new]) == (PolicyRun(old, 2), PolicyRun(new, 1))
    assert policy_runs([]) == ()


@given(trajectories())
def test_trajectories_are_equal_exactly_when_every_bit_is(trajectory: Trajectory) -> None:
    assert trajectory == replace(trajectory, logprobs=trajectory.logprobs.copy())
    assert hash(trajectory) == hash(replace(trajectory, logprobs=trajectory.logprobs.copy()))
    assert trajectory != replace(trajectory, sample=trajectory.sample + 1)
    if len(trajectory.logprobs):
        assert trajectory != replace(trajectory, logprobs=trajectory.logprobs - 1)
