"""Chooses samples of each batch and computes their rewards again; says which worker's rewards are others.

One wrong reward may come of a limit of time, on a busy machine. So the first one has more samples of its worker
computed again, and a worker is stopped for its second.
"""

import asyncio
import copy
import logging
import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random, SystemRandom

from periplus.environment.completions import CompletionDecoder
from periplus.environment.environment import Environment, Item
from periplus.environment.rewards import NAMED
from periplus.environment.rewards.completions import ScoredText, scored_text
from periplus.errors import RewardTimedOut
from periplus.job.job_file import JobFile
from periplus.job.reward_functions import VerifierReward, WeightedFunction, kind_of, label_of
from periplus.job.samples.reward_parts import reward_failures_of, reward_parts_of
from periplus.process.telemetry import event
from periplus.values.trajectory import Trajectory
from trainer.checks.function_process import FunctionProcess

log = logging.getLogger(__name__)

MORE = 64
"""Samples of one worker in a batch that are computed again once one of them was wrong. Chosen by hand."""

MAX_WRONG = 2
"""Wrong rewards of one worker for which it is stopped."""

ROUNDING = 1e-6
"""Difference of rewards, relative to those above 1, that rounding may make. Values of functions are far apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongReward:
    """A sample whose reward is another one than the trainer computes. `stops` says that its worker is to be stopped."""

    worker_id: str
    group: int
    why: str
    stops: bool


class GuardedEnvironment:
    """An environment that threads ask one at a time."""

    def __init__(self, environment: Environment) -> None:
        self._environment, self._lock = environment, threading.Lock()

    def __len__(self) -> int:
        return len(self._environment)

    def item(self, index: int) -> Item:
        """Return the item at `index`."""
        with self._lock:
            return self._environment.item(index)

    def score(self, index: int, completion: str) -> float:
        """Return the score of a completion."""
        with self._lock:
            return self._environment.score(index, completion)


class RewardChecks:
    """The checks of one job's rewards. `random` chooses samples, such that no worker knows which."""

    def __init__(
        self, job: JobFile, environment: Environment, decoder: CompletionDecoder, random: Random | None = None
    ) -> None:
        self._environment, self._decoder = environment, copy.deepcopy(decoder)  # a tokenizer serves one thread
        self._stops, self._timeout_s = job.sampling.stop, job.reward.timeout_s
        self._random = random or SystemRandom()
        self._entries = job.reward.entries
        self._has_parts = not job.reward.is_verifier_alone
        self._failure_value = job.reward.failure_value
        named = [entry for entry in self._entries if kind_of(entry) in NAMED]
        self._places = {label_of(entry): place for place, entry in enumerate(named)}
        settings = [
            (str(kind_of(entry)), {**entry.model_dump(mode="json"), "timeout_s": self._timeout_s}) for entry in named
        ]
        self._process = FunctionProcess(settings, self._timeout_s)
        can = bool(named) or any(isinstance(entry, VerifierReward) for entry in self._entries)
        has_turns = job.environment is not None and job.environment.has_turns
        self._share = job.reward.recheck_share if can and not has_turns else 0.0
        self._num_wrong = Counter[str]()
        self.num_checked = 0
        """Samples whose rewards were computed again."""
        self.obstacle = ""
        """Why nothing is computed again any more; empty if it is."""

    async def check(self, batch: Sequence[Trajectory]) -> list[WrongReward]:
        """Compute the rewards of some samples of a batch again, and return the wrong ones.

        Nothing is computed again of a worker that is to be stopped.
        """
        found: list[WrongReward] = []
        for number, each in enumerate(batch):
            if self._share and self._random.random() < self._share and (wrong := await self._wrong([each])):
                others = [other for at, other in enumerate(batch) if at != number]
                found += wrong
                found += await self._wrong([other for other in others if other.worker_id == each.worker_id][:MORE])
        return found

    async def close(self) -> None:
        """End the process of the functions."""
        await self._process.close()

    async def _wrong(self, trajectories: Sequence[Trajectory]) -> list[WrongReward]:
        found = []
        for each in trajectories:
            if self.obstacle or self._num_wrong[each.worker_id] >= MAX_WRONG:
                break
            try:
                why = await self._difference(each)
            except RewardTimedOut as error:
                # Its worker says that the same function gave a value in that time. To go on without checks instead
                # would let a worker end them.
                why = _words(each, f"the reward is {each.reward}", str(error))
            except TimeoutError:
                # A thread cannot be ended, so that nothing else may be asked of the environment.
                self.obstacle = f"group {each.group} sample {each.sample} took more than {self._timeout_s:g} s"
                break
            except (OSError, EOFError) as error:
                self.obstacle = str(error)
                break
            except Exception as error:  # the root of foreign code: an environment may raise anything
                event(log, logging.WARNING, "reward_not_computed", item=each.item, why=error)
                continue
            self.num_checked += 1
            if why:
                self._num_wrong[each.worker_id] += 1
                stops = self._num_wrong[each.worker_id] >= MAX_WRONG
                found.append(WrongReward(worker_id=each.worker_id, group=each.group, why=why, stops=stops))
        return found

    async def _difference(self, trajectory: Trajectory) -> str:
        """Return how a sample's reward differs from what is computed here; empty if it does not."""
        item = self._environment.item(trajectory.item)
        ids = [int(token) for token in trajectory.completion_ids]
        text = scored_text(item, self._decoder.text_before(ids, self._stops), len(ids))
        said, failed = reward_parts_of(trajectory.metadata), reward_failures_of(trajectory.metadata)
        total, judged = 0.0, False
        for entry in self._entries:
            label = label_of(entry)
            value = said.get(label)
            if label in failed:
                value = self._failure_value
            elif (computed := await self._computed(entry, item, text)) is not None:
                if self._has_parts and (value is None or not _same(value, computed)):
                    return _words(trajectory, f"{label} is {value}", computed)
                value = computed
            if value is not None:
                total, judged = total + entry.weight * value, True
        if (trajectory.reward is None) == judged or (judged and not _same(trajectory.reward or 0.0, total)):
            return _words(trajectory, f"the reward is {trajectory.reward}", total if judged else None)
        return ""

    async def _computed(self, entry: WeightedFunction, item: Item, text: ScoredText) -> float | None:
        if isinstance(entry, VerifierReward):
            async with asyncio.timeout(self._timeout_s):
                return float(await asyncio.to_thread(self._environment.score, item.index, text.completion))
        place = self._places.get(label_of(entry))
        return None if place is None else await self._process.value(place, text)


def _same(said: float, computed: float) -> bool:
    return math.isclose(said, computed, rel_tol=ROUNDING, abs_tol=ROUNDING)


def _words(trajectory: Trajectory, said: str, computed: float | str | None) -> str:
    return (
        f"of group {trajectory.group} sample {trajectory.sample} (problem {trajectory.item}), {said}; computed here: "
        f"{computed}"
    )
