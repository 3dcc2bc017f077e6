"""Scoring: what turns a finished completion into a reward.

`Scorer` is what episodes need of it. `EnvironmentScorer` asks the job's environment; rewards/scorer.py asks the job's
reward functions. Whatever a scorer raises costs the one sample that it was asked about.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from periplus.environment.environment import Environment, Item


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleScore:
    """The reward of a sample, and the parts that it was summed from, by the label of the reward function.

    `failures` names the kind of failure of each function that gave no value and got one instead.
    """

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSample:
    """Which sample is scored, by group and number in it, the tokens of its completion, and the newest version of them.

    Scores of named functions do not depend on it; functions of the user's own may ask for tokens and version.
    """

    group: int = 0
    sample: int = 0
    token_ids: tuple[int, ...] = ()
    version: int = 0


UNKNOWN_SAMPLE = ScoredSample()
"""What a scorer is told of a completion that is no sample of a run."""


def turn_score(rewards: Sequence[float]) -> SampleScore:
    """Return the score of an episode whose environment has given these rewards: their sum, with each as a part."""
    parts = {f"turn_{number}": reward for number, reward in enumerate(rewards, start=1)}
    return SampleScore(reward=float(sum(rewards)), parts=parts)


class Scorer(Protocol):
    """Scores completions. Many calls may be under way at the same time."""

    async def score(
        self, item: Item, completion: str, *, num_tokens: int, sample: ScoredSample = UNKNOWN_SAMPLE
    ) -> SampleScore:
        """Return the score of a decoded completion of a problem, which has `num_tokens` tokens.

        Raises: anything; it costs this sample alone.
        """
        ...


class EnvironmentScorer:
    """Scores by the environment's own rule, in a thread.

    `environment_lock` is held meanwhile by whoever calls the environment, which need not be safe to call at once.
    """

    def __init__(self, environment: Environment, environment_lock: asyncio.Lock) -> None:
        self._environment, self._lock = environment, environment_lock

    async def score(
        self, item: Item, completion: str, *, num_tokens: int, sample: ScoredSample = UNKNOWN_SAMPLE
    ) -> SampleScore:
        """Return the environment's score, which has no parts."""
        async with self._lock:
            return SampleScore(reward=float(await asyncio.to_thread(self._environment.score, item.index, completion)))
