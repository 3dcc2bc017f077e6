"""The scorer of a job with reward functions: it asks all of them about a sample, and sums what they say.

    reward = sum of weight x value over the functions that judged the sample

A function that returns None has not judged it. If none judged it, the sample has no reward and is not trained on. One
that failed gets the job's `failure_value` instead, with the kind of failure beside it, or the sample fails with it. If
a function fails MAX_FAILURES_IN_A_ROW times in a row, not the completions but the function is at fault: from then on
samples fail, until it gives a value again. A function that has never given a value, and has failed
`most_first_failures` times, ends its worker with its own error, for good.

Failures are logged: the first LOGGED_FIRST of each function, and then each LOGGED_EVERY-th.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from periplus.environment.environment import Item
from periplus.environment.rewards.completions import ScoredText, scored_text
from periplus.errors import FunctionRefused, RewardFailed
from periplus.process.telemetry import event
from periplus.values.reward_failure import failure_kind
from rollout_worker.episodes.scoring import UNKNOWN_SAMPLE, SampleScore, ScoredSample, Scorer
from rollout_worker.rewards.pool import RewardPool

log = logging.getLogger(__name__)

LOGGED_FIRST, LOGGED_EVERY = 5, 100
"""Which failures of a function are logged: the first ones, then each of so many, since one that always fails would fill
the log. Chosen by hand."""

LOGGED_CHARACTERS = 200
"""Characters of the completion in the log's line of a failure. Chosen by hand."""

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
    """A function that runs in the processes of a pool.

    It gets the data set's row only with `needs_columns`, and the token ids only with `needs_tokens`.
    """

    pool: RewardPool
    function: int
    needs_columns: bool
    needs_tokens: bool

    async def value(self, item: Item, text: ScoredText) -> float | None:
        """Return the function's value."""
        if not self.needs_tokens:
            text = replace(text, token_ids=())
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
    most_first_failures: int = MAX_FAILURES_IN_A_ROW
    _has_worked: set[str] = field(default_factory=set)
    _num_failures: Counter[str] = field(default_factory=Counter)
    _hopeless: asyncio.Queue[FunctionRefused] = field(default_factory=asyncio.Queue)
    _failed_in_a_row: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Run the processes of the functions until cancelled.

        Raises: ConfigError if they cannot be started; FunctionRefused if they cannot be loaded, or one has only ever
        failed.
        """
        async with asyncio.TaskGroup() as tasks:
            for pool in self.pools:
                tasks.create_task(pool.run())
            raise await self._hopeless.get()

    async def score(
        self, item: Item, completion: str, *, num_tokens: int, sample: ScoredSample = UNKNOWN_SAMPLE
    ) -> SampleScore:
        """Return the weighted sum of the functions' values, with the values. Raises: RewardFailed; others' errors."""
        text = scored_text(item, completion, num_tokens, token_ids=sample.token_ids, version=sample.version)
        # A job has few functions, and each of them has a time limit.
        asked = (self._value(each, item, text, sample) for each in self.parts)
        found = await asyncio.gather(*asked, return_exceptions=True)
        values: dict[str, float] = {}
        failures: dict[str, str] = {}
        for each, value in zip(self.parts, found, strict=True):
            if isinstance(value, RewardFailed) and self._may_stand_in(each.label) and self.failure_value is not None:
                values[each.label], failures[each.label] = self.failure_value, failure_kind(value).value
            elif isinstance(value, BaseException):
                raise value
            elif value is not None:
                values[each.label] = value
        if not values:
            return SampleScore(reward=None)
        reward = sum(each.weight * values[each.label] for each in self.parts if each.label in values)
        return SampleScore(reward=float(reward), parts=values, failures=failures)

    async def _value(self, part: WeightedPart, item: Item, text: ScoredText, sample: ScoredSample) -> float | None:
        try:
            value = await part.part.value(item, text)
        except RewardFailed as error:
            self._failed_in_a_row[part.label] += 1
            self._num_failures[part.label] += 1
            self._log(part.label, error, item, text, sample)
            self._end_if_hopeless(part.label, error)
            raise
        self._failed_in_a_row[part.label] = 0
        self._has_worked.add(part.label)
        return value

    def _log(self, label: str, error: RewardFailed, item: Item, text: ScoredText, sample: ScoredSample) -> None:
        number = self._num_failures[label]
        if number <= LOGGED_FIRST or number % LOGGED_EVERY == 0:
            event(
                log,
                logging.WARNING,
                "reward_function_failed",
                function=label,
                failures=number,
                why=error,
                item=item.index,
                group=sample.group,
                sample=sample.sample,
                completion=repr(text.completion[:LOGGED_CHARACTERS]),
            )

    def _end_if_hopeless(self, label: str, error: RewardFailed) -> None:
        number = self._num_failures[label]
        if label not in self._has_worked and number == self.most_first_failures:
            failed = "once" if number == 1 else f"all {number} times"
            self._hopeless.put_nowait(
                FunctionRefused(
                    f"the reward function {label} has failed {failed} that it was called (the last time: {error}), and "
                    "has never given a value; mend it and submit the job again"
                )
            )

    def _may_stand_in(self, label: str) -> bool:
        has_hope = label in self._has_worked or self._num_failures[label] < self.most_first_failures
        return has_hope and self._failed_in_a_row[label] < MAX_FAILURES_IN_A_ROW


def _without_columns(text: ScoredText) -> ScoredText:
    return ScoredText(prompt="", completion=text.completion, answer=text.answer, num_tokens=text.num_tokens)
