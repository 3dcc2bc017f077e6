"""When the first steps of a job can teach nothing, it is said once, with the likeliest cause."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_job import tiny_job
from trainer.reporting.silence import FIRST_STEPS, SilenceWatch

STEP = {"num_samples": 8.0, "truncated_fraction": 0.25}


def said(folder: Path, steps: int = 10, **job: Any) -> Any:
    watch = SilenceWatch(tiny_job(folder, steps=steps, **job))

    def tell(values: dict[str, float], rewards: list[float], *, has_signal: bool = False) -> str | None:
        return watch.seen(STEP | values, rewards, has_signal=has_signal)

    return tell


@pytest.mark.parametrize(
    ("values", "rewards", "has_signal", "words"),
    [
        ({}, [0.0] * 8, False, "no sample of the first 3 steps has a reward above 0; are the answers in the form"),
        ({"truncated_fraction": 1.0}, [0.0] * 8, False, "cut off at sampling.max_new_tokens=1: the model does not end"),
        ({"reward_failures": 8.0}, [0.0] * 8, False, "the reward functions fail; see the log"),
        ({}, [], False, "no reward function judged a sample"),
        ({"truncated_fraction": 1.0}, [0.0, 1.0] * 4, True, "every completion of the first 3 steps was cut off"),
        ({"uniform_samples": 8.0}, [1.0] * 8, False, "all samples are judged alike"),
        ({}, [1.0] * 8, False, "all samples are judged alike"),
        ({}, [0.0, 1.0] * 4, True, None),
        # Rewards below 0 that differ, as those of a penalty or a reward model, and the whitened ones of PPO.
        ({}, [-3.0, -1.0] * 4, True, None),
        ({}, [0.0] * 8, True, "no sample of the first 3 steps has a reward above 0"),
        ({"reward_failures": 1.0}, [0.0] * 8, False, "are the answers in the form"),
        ({"num_samples": 0.0}, [], False, "every sample of the first 3 steps was dropped"),
    ],
)
def test_what_all_first_steps_have_in_common_is_said_once(
    tmp_path: Path, values: dict[str, float], rewards: list[float], has_signal: bool, words: str | None
) -> None:
    tell = said(tmp_path)
    texts = [tell(values, rewards, has_signal=has_signal) for _ in range(FIRST_STEPS + 2)]
    assert [text for place, text in enumerate(texts) if place != FIRST_STEPS - 1] == [None] * (FIRST_STEPS + 1)
    found = texts[FIRST_STEPS - 1]
    assert (found is None) if words is None else (found is not None and words in found)


def test_one_sample_that_differs_is_enough(tmp_path: Path) -> None:
    tell = said(tmp_path)
    steps = [tell({}, [0.0] * 8), tell({}, [0.0] * 7 + [0.5], has_signal=True), tell({}, [0.0] * 8)]
    assert steps == [None] * 3


def test_a_shorter_job_is_looked_at_as_a_whole(tmp_path: Path) -> None:
    assert "of the first step has" in said(tmp_path, steps=1)({}, [0.0] * 8)
