"""What a job calls right, for accuracies and for filters of groups."""

import json
from dataclasses import replace
from typing import Any

import pytest

from periplus.errors import ConfigError
from periplus.job.job_file import SCHEMA, JobFile, job_of
from periplus.job.reward_functions import RewardFunction
from periplus.job.samples.correctness import BEST, correctness_of
from periplus.job.samples.reward_parts import reward_metadata
from periplus.values.trajectory import Trajectory
from tests.periplus.values.test_trajectory import GOOD

JOB = {"name": "a", "environment": {"name": "chain_sum"}}
EXACT_AND_LENGTH = {"functions": [{"name": "exact"}, {"name": "length", "target": 4, "max": 64, "weight": 0.1}]}
OWN: dict[str, Any] = {"functions": [{"path": "json:loads", "label": "own"}, {"name": "math", "label": "sums"}]}


def judged(reward: float | None, **parts: float) -> Trajectory:
    return replace(GOOD, reward=reward, metadata=reward_metadata(parts, {}))


def right(reward: Any, sample: Trajectory) -> tuple[bool | None, float | None]:
    correct = correctness_of(
        JobFile.from_json(
            json.dumps(
                {"schema": SCHEMA, "name": "a", "environment": {"name": "chain_sum"}, "reward": as_section(reward)}
            )
        )
    )
    return correct.is_right(sample), correct.outcome(sample)


def as_section(reward: Any) -> Any:
    return {"name": reward} if isinstance(reward, str) else reward


def test_the_first_function_decides_whatever_else_shapes_the_reward() -> None:
    assert right(EXACT_AND_LENGTH, judged(0.94, exact=1.0, length=-0.6)) == (True, 1.0)
    assert right(EXACT_AND_LENGTH, judged(-0.02, exact=0.0, length=-0.2)) == (False, 0.0)
    assert right("verifier", judged(1.0)) == (True, 1.0)
    assert right("verifier", judged(0.4)) == (False, 0.4), "partial credit is a difference, and not right"


def test_a_job_may_name_the_function_or_the_least_right_reward() -> None:
    assert right({**OWN, "correct": "sums"}, judged(-3.0, own=-4.0, sums=1.0)) == (True, 1.0)
    assert right({**OWN, "correct": 0.5}, judged(0.7, own=0.1, sums=0.6)) == (True, 1.0)
    assert right({**OWN, "correct": 1}, judged(0.3, own=0.1, sums=0.2)) == (False, 0.0)
    assert right({**OWN, "correct": "own"}, judged(9.0, own=1.5)) == (True, 1.5)


def test_where_the_best_value_is_not_known_nothing_is_right_or_wrong() -> None:
    assert right(OWN, judged(2.5, own=1.5, sums=1.0)) == (None, 1.5)
    assert right(EXACT_AND_LENGTH, judged(None)) == (None, None)
    assert right({**EXACT_AND_LENGTH, "correct": 0.5}, judged(None)) == (None, None)


def test_every_function_by_name_has_a_best_value_but_the_reward_model() -> None:
    names = {str(each) for each in job_names()}
    assert names - set(BEST) == {"model"}


def job_names() -> list[str]:
    union = RewardFunction.__args__[0]
    fields = [member.__args__[0].model_fields if hasattr(member, "__args__") else {} for member in union.__args__]
    return [field["name"].annotation.__args__[0] for field in fields if "name" in field]


def test_a_name_that_no_function_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"reward\.correct is 'maths', but .* recorded as exact, length; name one"):
        job_of({**JOB, "reward": {**EXACT_AND_LENGTH, "correct": "maths"}})
