"""An engine on the trainer's devices, which it has by turns with the trainer."""

import asyncio

import numpy as np
import numpy.typing as npt

from periplus.process.device_turns import DeviceTurns
from periplus.values.policy import Policy
from rollout_worker.engines.engine import Continuations, Engine, OnSwap, SwapReport, WeightChange
from rollout_worker.engines.engine_around import EngineAround


class SharingEngine(EngineAround):
    """Fulfils `Engine` with another engine, which computes only while this process has its turn.

    Requests may be submitted and aborted at any time. Calls that use the weights wait for the turn, and the turn waits
    for them. `run` takes and gives up the turns; before it runs, nothing is computed.
    """

    def __init__(self, engine: Engine, turns: DeviceTurns) -> None:
        super().__init__(engine)
        self._turns = turns
        self._has_turn = asyncio.Lock()  # held by `run` while the trainer has the devices, else by one call at a time

    async def run(self) -> None:
        """Take the devices when the trainer does not want them, and give them up when it does. Raises: EngineDied."""
        while True:
            async with self._has_turn:
                await self.suspend()
                self._turns.give_up()
                await self._turns.take()
                await self.resume()
            await self._turns.wanted()

    async def swap(self, change: WeightChange, policy: Policy, on_swap: OnSwap) -> SwapReport:
        async with self._has_turn:
            return await super().swap(change, policy, on_swap)

    async def digest(self) -> bytes:
        async with self._has_turn:
            return await super().digest()

    async def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        async with self._has_turn:
            return await super().logprobs(ids)

    async def continuations(self, ids: npt.NDArray[np.int64], num_tokens: int) -> Continuations | None:
        async with self._has_turn:
            return await super().continuations(ids, num_tokens)
