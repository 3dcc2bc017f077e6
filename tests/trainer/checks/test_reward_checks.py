"""Rewards that are computed again: right and wrong ones, of several functions, and functions that hang."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from periplus.config.loading import validate
from periplus.environment.completions import CompletionDecoder
from periplus.environment.environment import Item
from periplus.errors import CorruptFrame
from periplus.job.job_file import JobFile
from periplus.values.trajectory import Trajectory, token_ids
from tests.support.trainer.kept_samples import trajectory_of
from trainer.checks.reward_checks import GuardedEnvironment, RewardChecks, WrongReward
from trainer.intake.reward_bounds import RewardBounds


class Letters:
    """A tokenizer whose tokens are the letters of the alphabet."""

    eos_token_id = 31

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join(chr(97 + token) for token in ids)


class Sums:
    """An environment whose rule is the share of the completion's letters that are a."""

    def __len__(self) -> int:
        return 3

    def item(self, index: int) -> Item:
        return Item(index=index, prompt="p", answer="aab")

    def score(self, index: int, completion: str) -> float:
        return completion.count("a") / len(completion)


def with_reward(reward: Any, **changes: Any) -> JobFile:
    tree = {"name": "j", "environment": {"name": "spell_backward"}, "reward": reward, **changes}
    return validate(JobFile, tree, "the test")


def checks(reward: Any, **changes: Any) -> RewardChecks:
    return RewardChecks(
        with_reward(reward, **changes), GuardedEnvironment(Sums()), CompletionDecoder(tokenizer=Letters()), Random(0)
    )


def sample(text: str, reward: float | None, worker: str = "w0", group: int = 0, **metadata: Any) -> Trajectory:
    ids = token_ids(ord(letter) - 97 for letter in text)
    return replace(
        trajectory_of(group, 0),
        completion_ids=ids,
        reward=reward,
        worker_id=worker,
        metadata=json.dumps(metadata) if metadata else "",
    )


def found(of: RewardChecks, *batch: Trajectory) -> list[WrongReward]:
    async def check() -> list[WrongReward]:
        try:
            return await of.check(batch)
        finally:
            await of.close()

    return asyncio.run(check())


ALL = {"recheck_share": 1.0}


def test_a_worker_is_stopped_for_its_second_wrong_reward() -> None:
    right, wrong = sample("aabb", 0.5), sample("aabb", 1.0, worker="w1", group=7)
    of = checks(ALL)
    (lone,) = found(of, right, wrong)
    assert (lone.worker_id, lone.group, lone.stops) == ("w1", 7, False)
    assert "the reward is 1.0; computed here: 0.5" in lone.why
    assert [each.stops for each in found(of, right, wrong)] == [True]
    # A batch with more of its samples needs no second one.
    assert [each.stops for each in found(checks(ALL), right, wrong, wrong)] == [False, True]


def test_only_a_share_is_computed_again_and_the_rest_of_a_worker_once_it_was_wrong() -> None:
    of = checks({"recheck_share": 0.1})
    batch = [sample("aabb", 0.5)] * 100
    assert found(of, *batch) == []
    assert 0 < of.num_checked < 30
    of = checks({"recheck_share": 0.1})
    assert [each.stops for each in found(of, *[sample("aabb", 1.0)] * 100)] == [False, True]
    assert found(of, *[sample("aabb", 1.0)] * 100) == [], "its worker is to be stopped already"
    none = checks({"recheck_share": 0.0})
    assert found(none, *[sample("aabb", 1.0)] * 100) == []


TWO = {**ALL, "functions": [{"name": "exact", "weight": 2.0}, {"path": "mine:score", "label": "own"}]}


def test_parts_that_can_be_computed_are_compared_and_the_sum_of_all() -> None:
    said: list[tuple[str, float | None, dict[str, float], dict[str, str], str]] = [
        ("aab", 2.5, {"exact": 1.0, "own": 0.5}, {}, ""),
        ("aab", 2.0, {"exact": 1.0}, {}, ""),  # a function of one's own need not judge
        ("abc", 2.5, {"exact": 1.0, "own": 0.5}, {}, "exact is 1.0; computed here: 0.0"),
        ("abc", 0.5, {"own": 0.5}, {}, "exact is None; computed here: 0.0"),
        ("aab", 3.5, {"exact": 1.0, "own": 0.5}, {}, "the reward is 3.5; computed here: 2.5"),
        ("aab", None, {"exact": 1.0}, {}, "the reward is None; computed here: 2.0"),
        ("aab", 0.0, {"exact": 0.0}, {"exact": "timed_out"}, ""),
        ("aab", 2.0, {"exact": 1.0}, {"exact": "timed_out"}, "the reward is 2.0; computed here: 0.0"),
    ]
    batch = [
        sample(text, reward, worker=str(number), reward_parts=parts, reward_failures=failures)
        for number, (text, reward, parts, failures, _) in enumerate(said)
    ]
    why = {each.worker_id: each.why.partition("), ")[2] for each in found(checks(TWO), *batch)}
    assert why == {str(number): differs for number, (*_, differs) in enumerate(said) if differs}


def test_the_text_ends_before_a_stop_string() -> None:
    of = checks(ALL, sampling={"stop": ["bb"]})
    assert found(of, sample("aaccbb", 0.5)) == []


def test_a_worker_cannot_end_the_checks_by_a_text_that_takes_too_long() -> None:
    slow = {**ALL, "timeout_s": 0.1, "functions": [{"name": "regex", "pattern": "(a+)+c"}]}
    of = checks(slow)
    hangs, wrong = (sample(text, 0.0, reward_parts={"regex": 0.0}) for text in ("a" * 40, "aac"))
    first, second = found(of, hangs, wrong)
    assert first.why.endswith("computed here: it took more than 0.1 s")
    assert second.why.endswith("regex is 0.0; computed here: 1.0")
    assert (second.stops, of.obstacle) == (True, "")


def test_an_environment_that_takes_too_long_ends_the_checks_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sums, "score", lambda *_: time.sleep(0.5))
    of = checks({**ALL, "timeout_s": 0.1})
    assert found(of, sample("ab", 0.5)) == []
    assert "took more than 0.1 s" in of.obstacle
    assert of.num_checked == 0


@pytest.mark.parametrize(
    ("reward", "bounds"),
    [
        ({}, (0.0, 1.0)),
        ({"functions": [{"name": "exact"}, {"name": "length", "target": 1, "max": 2, "weight": 0.5}]}, (-0.5, 1.0)),
        ({"functions": [{"name": "exact", "weight": -2.0}], "failure_value": -1}, (-2.0, 2.0)),
        ({"functions": [{"name": "exact"}, {"path": "mine:score"}]}, None),
    ],
)
def test_rewards_lie_in_what_the_functions_give(reward: Any, bounds: tuple[float, float] | None) -> None:
    assert with_reward(reward).reward.bounds == bounds


def test_a_reward_outside_is_refused_by_name() -> None:
    limits = RewardBounds(-0.5, 1.0)
    for reward in (None, -0.5, 1.0, 1.0 + 1e-12):
        limits.check(sample("a", reward))
    with pytest.raises(CorruptFrame, match=r"bad reward: 1000 .* give from -0.5 to 1 \(worker 'w0'\)"):
        limits.check(sample("a", 1000.0))
