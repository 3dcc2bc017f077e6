"""What an engine around another one passes on as it is."""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from periplus.values.policy import Policy
from rollout_worker.engines.engine import (
    Completion,
    Continuations,
    Engine,
    OnSwap,
    SampleRequest,
    SwapReport,
    WeightChange,
)


class EngineAround:
    """Fulfils `Engine` with the engine within; subclasses replace what they change."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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
        return await self._engine.swap(change, policy, on_swap)

    async def digest(self) -> bytes:
        return await self._engine.digest()

    async def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return await self._engine.logprobs(ids)

    async def continuations(self, ids: npt.NDArray[np.int64], num_tokens: int) -> Continuations | None:
        return await self._engine.continuations(ids, num_tokens)

    async def drain(self) -> None:
        await self._engine.drain()

    async def suspend(self) -> None:
        await self._engine.suspend()

    async def resume(self) -> None:
        await self._engine.resume()

    async def close(self) -> None:
        await self._engine.close()
