"""An engine that does what a test says, when it says so, and remembers what it was asked."""

import asyncio
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.engine import (
    Completion,
    CompletionEnd,
    Continuations,
    OnSwap,
    SampleRequest,
    SwapReport,
    WeightChange,
)


class ScriptedEngine:
    """Requests wait until the test ends them with `complete`, `fail` or `die`."""

    vocab_size, computes_in_bfloat16 = 50, False

    def __init__(self, num_slots: int = 4) -> None:
        self.num_slots = num_slots
        self.running: dict[str, tuple[SampleRequest, asyncio.Future[Completion]]] = {}
        self.asked: list[str] = []
        self.aborted: list[str] = []
        self.swapped: list[tuple[Policy, OnSwap, WeightChange]] = []
        self.checking = asyncio.Event()
        self.checking.set()
        self.is_suspended = False
        self.swap_error: Exception | None = None
        self.held_digest, self.probe = b"", np.zeros(0, dtype=np.float32)

    @property
    def room(self) -> int:
        return self.num_slots - len(self.running)

    async def submit(self, request: SampleRequest) -> Completion:
        assert request.request_id not in self.running, "ids of requests under way are unique"
        self.asked.append(request.request_id)
        self.running[request.request_id] = request, asyncio.get_running_loop().create_future()
        try:
            return await self.running[request.request_id][1]
        finally:
            del self.running[request.request_id]

    def complete(self, request_id: str, *runs: PolicyRun, end: CompletionEnd = CompletionEnd.EOS, **what: Any) -> None:
        num_tokens = sum(run.num_tokens for run in runs)
        values: dict[str, Any] = {
            "token_ids": (7,) * num_tokens,
            "logprobs": (-0.5,) * num_tokens,
            "runs": runs,
            "end": end,
            "longest_gap_s": 0.0,
        }
        self.running[request_id][1].set_result(Completion(**(values | what)))

    def fail(self, error: Exception, *request_ids: str) -> None:
        for request_id in request_ids or tuple(self.running):
            self.running[request_id][1].set_exception(error)

    async def abort(self, request_ids: Collection[str]) -> None:
        self.aborted += request_ids
        for request_id in [each for each in request_ids if each in self.running and not self.running[each][1].done()]:
            self.complete(request_id, end=CompletionEnd.ABORTED)

    async def swap(self, change: WeightChange, policy: Policy, on_swap: OnSwap) -> SwapReport:
        await asyncio.sleep(0)
        if self.swap_error is not None:
            error, self.swap_error = self.swap_error, None
            raise error
        self.swapped.append((policy, on_swap, change))
        return SwapReport(write_s=0.125, pause_s=0.25)

    async def digest(self) -> bytes:
        await self.checking.wait()
        return self.held_digest

    async def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return self.probe

    async def continuations(self, ids: npt.NDArray[np.int64], num_tokens: int) -> Continuations | None:
        return None

    async def drain(self) -> None:
        await asyncio.gather(*(future for _, future in self.running.values()), return_exceptions=True)

    async def suspend(self) -> None:
        assert not self.is_suspended
        self.is_suspended = True

    async def resume(self) -> None:
        assert self.is_suspended
        self.is_suspended = False

    async def close(self) -> None:
        pass
