"""An engine for jobs with low-rank adapters: it merges them, and lets another engine compute with the merged weights.

To the worker it is an engine that holds the published state, base and adapters. The engine within knows no adapters:
it gets the merged weights under their checkpoint names (merged_weights.py), in threads, while requests go on.

`digest` covers the published state and the merged weights. If the engine within holds exactly the merged weights, the
result is the digest of the published state, recomputed from the copies that were merged. If not, the result is the
digest of what the engine within holds, which differs from that of any publication. Whether the merge itself is right
shows in `logprobs`, which the worker compares with the trainer's.
"""

import asyncio

from periplus.values.policy import Policy
from rollout_worker.engines.engine import (
    Engine,
    OnSwap,
    SwapReport,
    WeightChange,
    WholeState,
)
from rollout_worker.engines.engine_around import EngineAround
from rollout_worker.engines.merged_weights import MergedWeights


class AdapterEngine(EngineAround):
    """Fulfils `Engine` with another engine. `scale` is the factor of the adapters' product, alpha / rank."""

    def __init__(self, engine: Engine, scale: float) -> None:
        super().__init__(engine)
        self._weights = MergedWeights(scale)

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
