"""Several engines with the same weights as one: servers that a job names, for example.

A request goes to the replica that holds its prompt's keys: each prompt ranks the replicas by a hash of the prompt and
the replica's name (*rendezvous hashing*), and takes the first one that has room. So the samples of a group stay
together, a replica that leaves moves only its own prompts, and nothing is remembered.

A replica that dies is left out from then on, and its requests begin again on another one. When the last one has died,
so has this engine. Weights are written to all replicas at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from periplus.errors import CorruptFrame, innermost
from periplus.process import telemetry
from periplus.values.policy import Policy
from rollout_worker.engines.engine import (
    Completion,
    Continuations,
    Engine,
    EngineDied,
    OnSwap,
    SampleRequest,
    SwapReport,
    WeightChange,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_DISAGREEMENT_NATS = 0.03
"""Largest mean difference between the log-probabilities of two replicas of the same weights. Chosen by hand: twice what
sound engines in bfloat16 differ from float32 (0.0136 at most, docs/design/0011-engines.md). Smaller faults show when
the worker compares the log-probabilities, which come from another replica each time, with the trainer's."""


class ReplicatedEngine:
    """Fulfils `Engine` with at least one replica, by name. Names must be the same in every worker for equal routes."""

    def __init__(self, replicas: Mapping[str, Engine]) -> None:
        assert replicas, "an engine needs a replica"
        self._replicas = dict(replicas)
        self._alive = dict(replicas)
        self._where: dict[str, Engine] = {}
        self._num_probes = 0
        first = next(iter(replicas.values()))
        self._vocab_size, self._computes_in_bfloat16 = first.vocab_size, first.computes_in_bfloat16

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary: token ids are below it."""
        return self._vocab_size

    @property
    def num_slots(self) -> int:
        """Number of requests that decode at the same time in all replicas that are alive."""
        return sum(engine.num_slots for engine in self._alive.values())

    @property
    def room(self) -> int:
        """Number of further requests that would begin at once."""
        return sum(engine.room for engine in self._alive.values())

    @property
    def computes_in_bfloat16(self) -> bool:
        """Whether the forward pass is in bfloat16."""
        return self._computes_in_bfloat16

    async def submit(self, request: SampleRequest) -> Completion:
        """Generate one completion; again on another replica, if its own dies. Raises: RequestFailed, EngineDied."""
        while True:
            name = self._choose(request)
            engine = self._where[request.request_id] = self._alive[name]
            try:
                return await engine.submit(request)
            except EngineDied as error:
                self._left(name, error)
            finally:
                del self._where[request.request_id]

    async def abort(self, request_ids: Collection[str]) -> None:
        """End these requests with the tokens so far. Raises: EngineDied."""
        for name, engine in list(self._alive.items()):
            here = [each for each in request_ids if self._where.get(each) is engine]
            if here:
                try:
                    await engine.abort(here)
                except EngineDied as error:
                    self._left(name, error)
        self._check_alive()

    async def swap(self, change: WeightChange, policy: Policy, on_swap: OnSwap) -> SwapReport:
        """Write new weights to all replicas. The report has the longest times of them. Raises: as `Engine.swap`."""
        reports = await self._all(lambda engine: engine.swap(change, policy, on_swap))
        return SwapReport(
            write_s=max(report.write_s for report in reports), pause_s=max(report.pause_s for report in reports)
        )

    async def digest(self) -> bytes:
        """Return the digest that all replicas have. Raises: CorruptFrame if they have different ones; EngineDied."""
        found = await self._all(lambda engine: engine.digest())
        if len(set(found)) > 1:
            raise CorruptFrame(f"{len(found)} replicas hold {len(set(found))} different states: one missed a change")
        return found[0]

    async def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the log-probabilities of one replica, of the next one each time; the others must agree with them.

        *Shapes*: ids S x T; returns S x (T - 1). Raises: CorruptFrame if a replica computes something else; EngineDied.
        """
        found = await self._all(lambda engine: engine.logprobs(ids))
        self._num_probes += 1
        chosen = found[self._num_probes % len(found)]
        for other in found:
            difference = float(np.abs(other - chosen).mean())
            if not difference <= MAX_DISAGREEMENT_NATS:
                raise CorruptFrame(
                    f"two replicas give the same tokens log-probabilities that differ by {difference:.4f} nats in the "
                    "mean: one of them computes with something else than it holds"
                )
        return chosen

    async def continuations(self, ids: npt.NDArray[np.int64], num_tokens: int) -> Continuations | None:
        """Return what one replica decodes, that whose log-probabilities were asked for last. Raises: EngineDied."""
        found = await self._all(lambda engine: engine.continuations(ids, num_tokens))
        return found[self._num_probes % len(found)]

    async def drain(self) -> None:
        """Wait until no request is under way. Raises: EngineDied."""
        await self._all(lambda engine: engine.drain())

    async def suspend(self) -> None:
        """Suspend all replicas. Raises: EngineDied."""
        await self._all(lambda engine: engine.suspend())

    async def resume(self) -> None:
        """Let all replicas go on. Raises: EngineDied."""
        await self._all(lambda engine: engine.resume())

    async def close(self) -> None:
        """End all replicas. It may be called twice."""
        self._alive = {}
        await asyncio.gather(*(engine.close() for engine in self._replicas.values()))

    def _choose(self, request: SampleRequest) -> str:
        self._check_alive()
        prompt = np.array(request.prompt_ids, "<i8").tobytes()
        ranked = sorted(self._alive, key=lambda name: blake3(name.encode() + b"\0" + prompt).digest())
        return next((name for name in ranked if self._alive[name].room), ranked[0])

    async def _all(self, call: Callable[[Engine], Awaitable[T]]) -> list[T]:
        """Return the results of the replicas that are alive and stay so. Raises: EngineDied if none is left."""
        self._check_alive()
        names = list(self._alive)

        async def one(name: str) -> T | EngineDied:
            try:
                return await call(self._alive[name])
            except EngineDied as error:
                return error

        # No replica is cancelled because another one failed: that could tear what it is writing.
        results = await asyncio.gather(*map(one, names), return_exceptions=True)
        found: list[T] = []
        for name, result in zip(names, results, strict=True):
            if isinstance(result, EngineDied):
                self._left(name, result)
            elif isinstance(result, BaseException):
                raise innermost(result)
            else:
                found.append(result)
        self._check_alive()
        return found

    def _left(self, name: str, error: EngineDied) -> None:
        if self._alive.pop(name, None) is not None:
            telemetry.event(log, logging.WARNING, "engine_replica_died", replica=name, error=str(error))

    def _check_alive(self) -> None:
        if not self._alive:
            raise EngineDied(f"none of {len(self._replicas)} replicas is left")
