"""A pool of reward processes: it gives them completions to score, and replaces those that hang or crash.

    waiting texts ---> a batch for whichever process is free ---> values, in order
                         |
                         +-- no answer in time, or the process ended: the text that it was at has failed, it is
                             replaced, and the others of the batch wait again

A function that scores one completion at a time answers for each, so that the text that it was at is known. One that
scores several at once does not: then each text of a failed batch is tried again alone. So a failure costs one
completion. A process takes its share of what waits, at most what the function wants in one call.

What waits is bounded by `MAX_WAITING`; callers wait for room. Whoever has called waits as long as the calls before it
take, each of which has a time limit.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from periplus.environment.rewards.completions import ScoredText
from periplus.errors import ConfigError, RewardCrashed, RewardFailed, RewardRaised, RewardTimedOut
from periplus.process.telemetry import event
from periplus.values.trajectory import MAX_REWARD, is_reward
from rollout_worker.rewards.child import ChildLost, RewardChild, RewardProgram, answered
from rollout_worker.rewards.pipes import ERROR_CHARACTERS

log = logging.getLogger(__name__)

MAX_WAITING = 4096
"""Most texts that wait in a pool. Chosen by hand, above the samples that a worker has under way."""

MAX_BATCH = 64
"""Most texts in one message to a process. Chosen by hand: a message takes 0.1 ms, and a text about 1 ms."""

MAX_STARTS = 3
"""Number of times in a row that a process may end before it is ready. Chosen by hand."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    function: int
    text: ScoredText
    value: "asyncio.Future[float | None]"
    alone: bool = False
    """Whether it must be scored by itself, because a batch that it was in has failed."""


@dataclass(slots=True)
class RewardPool:
    """Processes that run one program. Await `run` in a task; `call` scores."""

    program: RewardProgram
    num_processes: int
    timeout_s: float
    labels: Sequence[str]
    """What errors call each function of the program."""

    batched: frozenset[int] = frozenset()
    """The functions that score several texts at once."""

    max_batch: int = MAX_BATCH
    _num_calls: int = 0
    _queue: deque[_Waiting] = field(default_factory=deque)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_WAITING))

    async def call(self, function: int, text: ScoredText) -> float | None:
        """Return what a function of the program says of a text; None if it does not judge it.

        Raises: RewardTimedOut, RewardCrashed or RewardRaised.
        """
        async with self._room:
            waiting = _Waiting(function=function, text=text, value=asyncio.get_running_loop().create_future())
            async with self._news:
                self._queue.append(waiting)
                self._news.notify()
            return await waiting.value

    async def run(self) -> None:
        """Run the processes until cancelled. Raises: ConfigError if the program cannot be started."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.num_processes):
                tasks.create_task(self._serve())

    async def _serve(self) -> None:
        child = await self._started()
        try:
            while True:
                batch = await self._next_batch()
                try:
                    await self._score(child, batch)
                except ChildLost as lost:
                    await self._lose(batch, lost)
                    child = await self._started()
        finally:
            await asyncio.shield(child.kill())

    async def _started(self) -> RewardChild:
        for attempt in range(MAX_STARTS):
            try:
                return await RewardChild.start(self.program)
            except (ChildLost, OSError) as error:
                why = error
                event(log, logging.WARNING, "reward_process_not_started", attempt=attempt + 1, why=error)
        raise ConfigError(f"no process for the reward functions {', '.join(self.labels)} can be started: {why}")

    async def _next_batch(self) -> list[_Waiting]:
        """Return texts for one function: a fair share of those that wait, the oldest first."""
        async with self._news:
            await self._news.wait_for(lambda: self._queue)
            share = -(-len(self._queue) // self.num_processes)
            batch = [self._queue.popleft()]
            while (
                self._queue
                and len(batch) < min(share, self.max_batch)
                and not (batch[0].alone or self._queue[0].alone)
                and self._queue[0].function == batch[0].function
            ):
                batch.append(self._queue.popleft())
            return batch

    async def _score(self, child: RewardChild, batch: list[_Waiting]) -> None:
        """Have a process score the texts, and take those that it has answered out of the batch. Raises: ChildLost."""
        function = batch[0].function
        texts = [waiting.text.to_json() for waiting in batch]
        call = self._num_calls = self._num_calls + 1
        await child.tell({"call": call, "function": function, "texts": texts}, self.timeout_s)
        while batch:
            said = await child.reply(self.timeout_s)
            values = answered(said, call, len(batch))
            if values is not None:
                for value in values:
                    self._answer(batch.pop(0), value)
            elif said.get("call") != call or "raised" not in said:
                await child.kill()
                raise ChildLost(timed_out=False, why="its process wrote something else than an answer")
            elif function in self.batched and len(batch) > 1:
                await self._again(batch, alone=True)
                batch.clear()
            else:
                self._fail(
                    batch.pop(0),
                    RewardRaised(f"{self.labels[function]} raised {str(said['raised'])[: 2 * ERROR_CHARACTERS]}"),
                )

    def _answer(self, waiting: _Waiting, value: Any) -> None:
        # A process sends each number as a float.
        if value is not None and not (isinstance(value, float) and is_reward(value)):
            gave = f"{self.labels[waiting.function]} gave {value!r:.80}"
            error = RewardRaised(f"{gave}; a reward is a number from -{MAX_REWARD:.0f} to {MAX_REWARD:.0f}")
            self._fail(waiting, error)
        elif not waiting.value.done():  # else whoever asked was cancelled
            waiting.value.set_result(value)

    def _fail(self, waiting: _Waiting, error: RewardFailed) -> None:
        if not waiting.value.done():
            waiting.value.set_exception(error)

    async def _lose(self, batch: list[_Waiting], lost: ChildLost) -> None:
        """Fail the text that a dead process was at, and let the others of the batch wait again."""
        label = self.labels[batch[0].function]
        if batch[0].function in self.batched and len(batch) > 1:
            await self._again(batch, alone=True)
            return
        culprit, *others = batch
        event(log, logging.WARNING, "reward_process_lost", function=label, timed_out=lost.timed_out, why=lost)
        error = RewardTimedOut if lost.timed_out else RewardCrashed
        self._fail(culprit, error(f"{label} gave no value for a completion: {lost}"))
        await self._again(others, alone=False)

    async def _again(self, waiting: Sequence[_Waiting], *, alone: bool) -> None:
        async with self._news:
            for each in reversed(waiting):
                each.alone = each.alone or alone
                self._queue.appendleft(each)
            self._news.notify_all()
