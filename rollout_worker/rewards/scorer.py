"""The scorer of a job with reward functions: it asks all of them about a sample, and sums what they say.

    reward = sum of weight x value over the functions that judged the sample

A function that returns None has not judged it. One that failed gets the job's `failure_value` instead, with the kind of
failure beside it, or the sample fails with it. If a function fails MAX_FAILURES_IN_A_ROW times in a row, not the
completions but the function is at fault: from then on samples fail, until it gives a value again.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from periplus.environment.environment import Item
from periplus.errors import RewardFailed
from periplus.values.reward_failure import failure_kind
from rollout_worker.episodes.scoring import SampleScore, Scorer
from rollout_worker.rewards.functions.completions import ScoredText
from rollout_worker.rewards.pool import RewardPool

MAX_FAILURES_IN_A_ROW = 64
"""Number of failures of one function in a row after which no value stands in for its own. Chosen by hand: four groups
of 16 samples."""


class PartScorer(Protocol):
    """Gives the value of one reward function."""

    async def value(self, item: Item, text: ScoredText) -> float | None:
        """Return the value for a completion, or None if the function does not judge it. Raises: RewardFailed."""
        ...


@dataclass(frozen=True, slots=True)
class PoolPart:
    """A function that runs in the processes of a pool. Without `needs_columns` it does not get the data set's row."""

    pool: RewardPool
    function: int
    needs_columns: bool

    async def value(self, item: Item, text: ScoredText) -> float | None:
        """Return the function's value."""
        return await self.pool.call(self.function, text if self.needs_columns else _without_columns(text))


@dataclass(frozen=True, slots=True)
class VerifierPart:
    """The environment's own rule as one of several functions."""

    scorer: Scorer

    async def value(self, item: Item, text: ScoredText) -> float | None:
        """Return the environment's score."""
        return (await self.scorer.score(item, text.completion, num_tokens=text.num_tokens)).reward


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedPart:
    """A reward function with its weight and the label under which its values are recorded."""

    label: str
    weight: float
    part: PartScorer


@dataclass(slots=True, kw_only=True)
class RewardScorer:
    """Scores samples by several functions. Await `run` in a task beside.

    `failure_value` stands in for the value of a function that failed; with None the sample fails.
    """

    parts: Sequence[WeightedPart]
    pools: Sequence[RewardPool]
    failure_value: float | None
    _failed_in_a_row: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Run the processes of the functions until cancelled. Raises: ConfigError if they cannot be started."""
        async with asyncio.TaskGroup() as tasks:
            for pool in self.pools:
                tasks.create_task(pool.run())

    async def score(self, item: Item, completion: str, *, num_tokens: int) -> SampleScore:
        """Return the weighted sum of the functions' values, with the values. Raises: RewardFailed; others' errors."""
        text = scored_text(item, completion, num_tokens)
        # A job has few functions, and each of them has a time limit.
        found = await asyncio.gather(*(self._value(each, item, text) for each in self.parts), return_exceptions=True)
        values: dict[str, float] = {}
        failures: dict[str, str] = {}
        for each, value in zip(self.parts, found, strict=True):
            if isinstance(value, RewardFailed) and self._may_stand_in(each.label) and self.failure_value is not None:
                values[each.label], failures[each.label] = self.failure_value, failure_kind(value).value
            elif isinstance(value, BaseException):
                raise value
            elif value is not None:
                values[each.label] = value
        reward = sum(each.weight * values[each.label] for each in self.parts if each.label in values)
        return SampleScore(reward=float(reward), parts=values, failures=failures)

    async def _value(self, part: WeightedPart, item: Item, text: ScoredText) -> float | None:
        try:
            value = await part.part.value(item, text)
        except RewardFailed:
            self._failed_in_a_row[part.label] += 1
            raise
        self._failed_in_a_row[part.label] = 0
        return value

    def _may_stand_in(self, label: str) -> bool:
        return self._failed_in_a_row[label] < MAX_FAILURES_IN_A_ROW


def scored_text(item: Item, completion: str, num_tokens: int) -> ScoredText:
    """Return what reward functions see of a problem and a completion of it."""
    return ScoredText(
        prompt=item.prompt,
        completion=completion,
        answer=item.answer,
        num_tokens=num_tokens,
        messages=tuple(message.to_mapping() for message in item.messages),
        columns=item.columns,
    )


def _without_columns(text: ScoredText) -> ScoredText:
    return ScoredText(prompt="", completion=text.completion, answer=text.answer, num_tokens=text.num_tokens)
