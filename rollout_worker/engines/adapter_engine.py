"""An engine for jobs with low-rank adapters: it merges them, and lets another engine compute with the merged weights.

To the worker it is an engine that holds the published state, base and adapters. The engine within knows no adapters:
it gets the merged weights under their checkpoint names (merged_weights.py), in threads, while requests go on.

`digest` covers the published state and the merged weights. If the engine within holds exactly the merged weights, the
result is the digest of the published state, recomputed from the copies that were merged. If not, the result is the
digest of what the engine within holds, which differs from that of any publication. Whether the merge itself is right
shows in `logprobs`, which the worker compares with the trainer's.
"""

import asyncio
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from periplus.values.policy import Policy
from rollout_worker.engines.engine import (
    Completion,
    Engine,
    OnSwap,
    SampleRequest,
    SwapReport,
    WeightChange,
    WholeState,
)
from rollout_worker.engines.merged_weights import MergedWeights


class AdapterEngine:
    """Fulfils `Engine` with another engine. `scale` is the factor of the adapters' product, alpha / rank."""

    def __init__(self, engine: Engine, scale: float) -> None:
        self._engine = engine
        self._weights = MergedWeights(scale)

    @property
    def vocab_size(self) -> int:
        return self._engine.vocab_size

    @property
    def num_slots(self) -> int:
        return self._engine.num_slots

    @property
    def room(self) -> int:
        return self._engine.room

    @property
    def computes_in_bfloat16(self) -> bool:
        return self._engine.computes_in_bfloat16

    async def submit(self, request: SampleRequest) -> Completion:
        return await self._engine.submit(request)

    async def abort(self, request_ids: Collection[str]) -> None:
        await self._engine.abort(request_ids)

    async def swap(self, change: WeightChange, policy: Policy, on_swap: OnSwap) -> SwapReport:
        if isinstance(change, WholeState):
            merged: WeightChange = await asyncio.to_thread(self._weights.replaced, change)
        else:
            merged = await asyncio.to_thread(self._weights.changed, change)
        return await self._engine.swap(merged, policy, on_swap)

    async def digest(self) -> bytes:
        found = await self._engine.digest()
        if found != await asyncio.to_thread(self._weights.merged_digest):
            return found
        return await asyncio.to_thread(self._weights.published_digest)

    async def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return await self._engine.logprobs(ids)

    async def drain(self) -> None:
        await self._engine.drain()

    async def close(self) -> None:
        await self._engine.close()
