"""An engine of an emulated device: another engine computes for real, and its completions are delivered at a pace.

What is delayed is the return of `submit`, and nothing else: a completion that has ended is held until the emulated
device could have computed it. That device works on one completion at a time, in the order in which they ended. It needs
`prefill_s` for each token of the request's prompt and `decode_s` for each sampled token, and cannot begin before the
request was submitted. So all requests together get no more tokens than the pace allows, in any stretch of time. The
time of the real work counts, and a stretch in which no request was there gives no credit. Prompts count in full, also
if they share a prefix.

The rate is that of the whole device. A single request gets all of it, where a real device would need a batch.

A held completion keeps its place in `room`, so that the engine within runs no further ahead than a batch. Swaps, checks
and probes go to it at once. `abort`, `close` and cancellation end the holding at once. Requests that end so, or fail,
cost the emulated device only the time that it has already worked on a held completion.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

from periplus import clock
from periplus.values.machine import Pace
from rollout_worker.engines.engine import (
    Completion,
    CompletionEnd,
    Engine,
    EngineDied,
    RequestFailed,
    SampleRequest,
)
from rollout_worker.engines.engine_around import EngineAround


class EmulatedDevice:
    """The work of an emulated device, on a monotonic clock: one completion at a time, each as early as it can be."""

    def __init__(self, now_s: float) -> None:
        self._free_s = now_s  # when all its work is done
        self._idle: list[tuple[float, float]] = []  # stretches before that without work, oldest first

    def work(self, submitted_s: float, cost_s: float, oldest_s: float) -> float:
        """Add `cost_s` seconds of work that cannot begin before `submitted_s`, and return when all work is done.

        A completion that took long may use stretches that were left idle by later ones that ended before it. Stretches
        before `oldest_s`, when the oldest request under way was submitted, are forgotten.
        """
        idle = list[tuple[float, float]]()
        for began_s, ended_s in self._idle:
            start_s = min(max(began_s, submitted_s), ended_s)
            used_s = min(cost_s, ended_s - start_s)
            cost_s -= used_s
            idle += [(began_s, start_s), (start_s + used_s, ended_s)]
        start_s = max(self._free_s, submitted_s) if cost_s else self._free_s
        idle.append((self._free_s, start_s))
        self._idle = [(began_s, ended_s) for began_s, ended_s in idle if max(began_s, oldest_s) < ended_s]
        self._free_s = start_s + cost_s
        return self._free_s

    def leave(self, now_s: float) -> None:
        """Drop the work that is not done yet."""
        self._free_s = min(self._free_s, now_s)


class PacedEngine(EngineAround):
    """Fulfils `Engine` with another engine, at the pace of an emulated device.

    `now_s` is a monotonic clock, and `sleep` waits for seconds of it.
    """

    def __init__(
        self,
        engine: Engine,
        pace: Pace,
        now_s: Callable[[], float] = clock.monotonic_s,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(engine)
        self._pace = pace
        self._clock, self._sleep = now_s, sleep
        self._suspended_s = 0.0  # seconds of all suspensions that have ended
        self._since_s: float | None = None  # when the present one began
        self._is_on = asyncio.Event()
        self._is_on.set()
        self._device = EmulatedDevice(now_s())
        self._turn = asyncio.Lock()  # fair: completions get it in the order in which they ended
        self._held: dict[str, asyncio.Task[None]] = {}
        self._open: dict[str, float] = {}  # when each request was submitted
        self._aborted: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False

    @property
    def room(self) -> int:
        return max(0, self._engine.room - len(self._held))

    async def submit(self, request: SampleRequest) -> Completion:
        request_id = request.request_id
        if request_id in self._open:
            raise RequestFailed(f"request {request_id} is under way already; ids are unique")
        self._open[request_id] = self._now_s()
        self._idle.clear()
        try:
            return await self._paced(request)
        finally:
            del self._open[request_id]
            self._aborted.discard(request_id)
            if not self._open:
                self._idle.set()

    async def _paced(self, request: SampleRequest) -> Completion:
        completion = await self._engine.submit(request)
        # An abort may have come too late for the engine within, and before this call went on.
        if completion.end is not CompletionEnd.ABORTED and request.request_id not in self._aborted:
            num_prompt, num_sampled = len(request.prompt_ids), len(completion.token_ids)
            cost_s = num_prompt * self._pace.prefill_s + num_sampled * self._pace.decode_s
            await self._hold(request.request_id, cost_s)
        if self._is_closed:
            raise EngineDied("the engine was closed")
        return replace(completion, end=CompletionEnd.ABORTED) if request.request_id in self._aborted else completion

    async def _hold(self, request_id: str, cost_s: float) -> None:
        if self._is_closed:
            return
        # A task of its own, so that `abort` ends the wait and not its caller.
        held = self._held[request_id] = asyncio.create_task(self._compute(self._open[request_id], cost_s))
        try:
            await asyncio.wait([held])
        finally:
            held.cancel()
            del self._held[request_id]
        if not held.cancelled():
            held.result()

    async def _compute(self, submitted_s: float, cost_s: float) -> None:
        async with self._turn:
            done_s = self._device.work(submitted_s, cost_s, min(self._open.values()))
            try:
                while (left_s := done_s - self._now_s()) > 0:
                    await self._sleep(left_s)
                    await self._is_on.wait()
            except asyncio.CancelledError:
                self._device.leave(self._now_s())
                raise

    async def abort(self, request_ids: Collection[str]) -> None:
        self._aborted |= self._open.keys() & set(request_ids)
        for held in [held for request_id, held in self._held.items() if request_id in self._aborted]:
            held.cancel()
        await self._engine.abort(request_ids)

    async def drain(self) -> None:
        await self._engine.drain()
        await self._idle.wait()

    async def suspend(self) -> None:
        await self._engine.suspend()
        self._since_s = self._clock()
        self._is_on.clear()

    async def resume(self) -> None:
        assert self._since_s is not None, "it was suspended"
        self._suspended_s, self._since_s = self._suspended_s + self._clock() - self._since_s, None
        self._is_on.set()
        await self._engine.resume()

    def _now_s(self) -> float:
        """Return the time of the emulated device, which stands still while it is suspended."""
        return (self._clock() if self._since_s is None else self._since_s) - self._suspended_s

    async def close(self) -> None:
        self._is_closed = True
        for held in self._held.values():
            held.cancel()
        await self._engine.close()
