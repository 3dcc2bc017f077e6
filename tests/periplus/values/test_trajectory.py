import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from periplus.codec import trajectory as trajectory_codec
from periplus.errors import CorruptFrame
from periplus.values.policy import Policy
from periplus.values.trajectory import (
    PolicyRun,
    Purpose,
    SamplingParams,
    StopReason,
    Trajectory,
    TrajectoryLimits,
    content_digest,
    read_only,
    token_ids,
    validate,
)
from tests.support.cases.strategies import trajectories

KEPT = (PolicyRun(Policy(1, 4), 1), PolicyRun(Policy(1, 5), 2, kept_kv=True))
LIMITS = TrajectoryLimits(vocab_size=100, max_prompt_tokens=4, max_completion_tokens=3)
GOOD = Trajectory(
    lease_id=1,
    group=2,
    sample=3,
    item=4,
    purpose=Purpose.TRAIN,
    prompt_ids=token_ids((5, 6)),
    completion_ids=token_ids((7, 8, 99)),
    logprobs=read_only([-1.0, 1e-6, 0], np.float32),
    mask=read_only((True, True, False), np.bool_),
    policies=(PolicyRun(Policy(1, 4), 1), PolicyRun(Policy(1, 5), 2)),
    reward=1.0,
    stop_reason=StopReason.EOS,
    sampling=SamplingParams(temperature=0.7, top_p=0.95, top_k=40),
    metadata='{"turns": 2}',
    worker_id="eu-west/rollout-0",
    generation_s=0.5,
)
NOTHING: dict[str, Any] = {
    "completion_ids": token_ids(()),
    "logprobs": np.empty(0, np.float32),
    "mask": np.empty(0, np.bool_),
    "policies": (),
}


def test_a_well_formed_trajectory_is_accepted() -> None:
    validate(GOOD, LIMITS)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompt_ids": token_ids((1,) * 5)}, "number of prompt tokens (limit 4): 5"),
        ({"completion_ids": token_ids((1,) * 4)}, "number of completion tokens (limit 3): 4"),
        ({"prompt_ids": token_ids((100,))}, "prompt id (vocabulary 100): 100"),
        ({"completion_ids": token_ids((1, -1, 2))}, "completion id: -1"),
        ({"completion_ids": np.zeros(3, np.int64)}, "type of completion ids: int64, 1-D"),
        ({"prompt_ids": np.zeros((1, 1), np.int32)}, "type of prompt ids: int32, 2-D"),
        ({"logprobs": np.zeros(3, np.float64)}, "type of logprobs: float64"),
        ({"logprobs": np.zeros(2, np.float32)}, "number of logprobs: 2"),
        ({"logprobs": np.array([0, np.nan, 0], np.float32)}, "logprob: [nan]"),
        ({"logprobs": np.array([0, -np.inf, 0], np.float32)}, "logprob: [-inf]"),
        ({"logprobs": np.array([0, 0.5, 0], np.float32)}, "logprob: [0.5]"),
        ({"logprobs": np.array([0, 0, -1.5], np.float32)}, "logprob of context: [-1.5]"),
        ({"logprobs": np.array([0, 0, -0.0], np.float32)}, "logprob of context"),
        ({"mask": np.ones(2, np.bool_)}, "number of mask bits: 2"),
        ({"mask": np.ones(3, np.uint8)}, "type of mask: uint8"),
        ({"policies": (PolicyRun(Policy(1, 4), 2),)}, "tokens covered by policy runs: 2"),
        ({"policies": (PolicyRun(Policy(1, 4), 3), PolicyRun(Policy(1, 5), 0))}, "empty policy run"),
        ({"policies": (PolicyRun(Policy(1, 5), 1), PolicyRun(Policy(1, 4), 2))}, "do not rise: ['1.5', '1.4']"),
        ({"policies": (PolicyRun(Policy(1, 4), 3, kept_kv=True),)}, "kept_kv of the first policy run"),
        ({"reward": float("nan")}, "reward: nan"),
        ({"reward": 1e200}, "reward: 1e+200 of group 2 sample 3"),
        ({"reward": -1000001.0}, "no number from -1000000 to 1000000"),
        ({"reward": float("inf")}, "scale the rewards of the environment"),
        ({"generation_s": -1.0}, "generation_s: -1.0"),
        ({"sampling": SamplingParams(temperature=-1.0)}, "sampling: SamplingParams(temperature=-1.0"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "sampling"),
        ({"sampling": SamplingParams(temperature=1.0, top_p=0.0)}, "sampling"),
        ({"sampling": SamplingParams(temperature=1.0, top_k=-1)}, "sampling"),
        ({"metadata": "[1]"}, "metadata (a JSON object in at most 64 KiB, or nothing): [1]"),
        ({"metadata": "{"}, "metadata"),
        ({"metadata": '{"a":' + "[" * 60_000 + "]" * 5_000}, "metadata"),
        ({"metadata": json.dumps({"a": "x" * (1 << 16)})}, "metadata"),
        ({"worker_id": ""}, "worker_id"),
    ],
)
def test_each_defect_is_refused_by_name_and_value(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CorruptFrame) as caught:
        validate(replace(GOOD, **change), LIMITS)
    assert named in str(caught.value)


def test_a_sample_that_no_function_judged_has_no_reward_and_keeps_its_digest_over_the_wire() -> None:
    unjudged = replace(GOOD, reward=None)
    validate(unjudged, LIMITS)
    (found,) = trajectory_codec.decode(trajectory_codec.encode([unjudged]), max_content_bytes=1 << 20)
    assert found.reward is None
    assert found == unjudged
    assert content_digest(found) == content_digest(unjudged) != content_digest(replace(GOOD, reward=0.0))


def test_an_abandoned_sample_without_tokens_is_accepted() -> None:
    validate(replace(GOOD, **NOTHING), LIMITS)


@given(trajectories())
def test_trajectories_are_equal_exactly_when_every_bit_is(trajectory: Trajectory) -> None:
    assert trajectory == replace(trajectory, logprobs=trajectory.logprobs.copy())
    assert hash(trajectory) == hash(replace(trajectory, logprobs=trajectory.logprobs.copy()))
    assert trajectory != replace(trajectory, sample=trajectory.sample + 1)
    if len(trajectory.logprobs):
        assert trajectory != replace(trajectory, logprobs=trajectory.logprobs - 1)


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"group": 9}, True),
        ({"sample": 9}, True),
        ({"item": 9}, True),
        ({"purpose": Purpose.EVAL}, True),
        ({"reward": 0.5}, True),
        ({"stop_reason": StopReason.LENGTH}, True),
        ({"prompt_ids": token_ids((5, 7))}, True),
        ({"prompt_ids": token_ids((5,))}, True),
        ({"completion_ids": token_ids((7, 8, 98))}, True),
        ({"mask": np.ones(3, np.bool_)}, True),
        ({"logprobs": np.array([-1.0, 1e-6, -0.0], np.float32)}, True),
        (NOTHING, True),
        ({"policies": (PolicyRun(Policy(1, 4), 2), PolicyRun(Policy(1, 5), 1))}, True),
        ({"policies": KEPT}, True),
        ({"sampling": SamplingParams(temperature=0.7, top_p=0.95, top_k=41)}, True),
        ({"prompt_ids": token_ids((5, 6, 7)), "completion_ids": token_ids((8, 99))}, True),
        ({"lease_id": 9}, False),
        ({"worker_id": "b"}, False),
        ({"generation_s": 9.0}, False),
        ({"metadata": ""}, False),
    ],
)
def test_the_digest_names_what_is_trained_on_and_nothing_else(change: dict[str, Any], seen: bool) -> None:
    assert (content_digest(replace(GOOD, **change)) != content_digest(GOOD)) is seen


def test_the_digest_is_frozen() -> None:
    assert content_digest(GOOD).hex() == "253f896d86bcfc3a6cf69310a06f8cc0"
    assert content_digest(replace(GOOD, policies=KEPT)).hex() == "070ead251199585687b68fe10d021cd4"


def test_a_later_run_may_keep_the_cache_of_an_older_policy() -> None:
    validate(replace(GOOD, policies=KEPT), LIMITS)


def test_arrays_of_a_trajectory_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        GOOD.completion_ids[0] = 1
