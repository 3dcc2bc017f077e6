"""Brings a worker's engine to the newest version that is proven in the host copy, between two batches.

`swap` writes the pending versions (pending_versions.py) into the engine. Only this pauses generation, and the pause is
measured. Every `check_every_versions` versions, and after each recovery, it also checks the engine's own tensors before
they serve (engine_writer.py). An engine that fails is written anew from the host copy if the copy still has the right
hash, else from a full state that the trainer signed. Until the repair `policy` is None, and the engine does not serve.

The subscription goes on meanwhile (reader.py). What both share, and who may touch it when, is in proven_weights.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from periplus import clock
from periplus.process.telemetry import event
from periplus.values.policy import Policy
from rollout_worker.weights.engine_writer import EngineCheck, EngineWeights
from rollout_worker.weights.host_copy import Signed
from rollout_worker.weights.pending_versions import Swap, check_is_due
from rollout_worker.weights.proven_weights import ProvenWeights
from rollout_worker.weights.version_report import VersionReport

log = logging.getLogger(__name__)


class EngineUpdater:
    """Updates one engine from the worker's proven weights.

    `report` sends a report of a version to the trainer. `check_every_versions`: after how many versions the engine
    itself is checked.
    """

    def __init__(
        self,
        engine: EngineWeights,
        weights: ProvenWeights,
        report: Callable[[VersionReport], Awaitable[None]],
        *,
        check_every_versions: int,
    ) -> None:
        self._engine = engine
        self._weights = weights
        self._report = report
        self._check_every_versions = check_every_versions
        self._num_since_check = 0

    @property
    def policy(self) -> Policy | None:
        """Policy that the engine may serve as; None if it must not serve."""
        return self._engine.policy

    async def swap(self) -> None:
        """Bring the engine to the newest proven version, check it if that is due, and report.

        Call it between two batches. Raises: WrongBase for weights that do not fit the engine's model; PeriplusError
        when repairs do not help.
        """
        # Failures that the subscription has counted end the process here: its own task would only subscribe again.
        self._weights.raise_if_hopeless()
        engine, pending = self._engine, self._weights.pending
        pending.skip_to(engine.policy)
        if not pending:
            return
        began_s = clock.monotonic_s()
        # Write: from here on, generation has to wait.
        swap = await self._write()
        if swap is None:
            return
        written_s = clock.monotonic_s()
        # Check the engine itself if that is due; `signed` is then what it holds, or None.
        self._num_since_check += len(swap.versions)
        finding: EngineCheck | None = None
        signed: Signed | None = swap.newest.signed
        if check_is_due(swap, self._num_since_check, self._check_every_versions):
            finding, signed = await self._check(swap.newest.signed)
        engine.policy = None if signed is None else signed.policy
        pause_s = clock.monotonic_s() - began_s
        event(
            log,
            logging.DEBUG,
            "weights",
            policy=engine.policy,
            versions=len(swap.versions),
            whole=swap.whole,
            write_s=written_s - began_s,
            pause_s=pause_s,
            checked=finding is not None,
        )
        # The repair failed. The engine does not serve until the full state that the subscription now requests is
        # written.
        if signed is None:
            self._weights.raise_if_hopeless()
            return
        # Report the skipped versions too; after a repair only the one that the engine holds.
        skipped = swap.versions[:-1] if signed is swap.newest.signed else ()
        for version in skipped:
            await self._report_version(VersionReport.of(version))
        await self._report_version(
            VersionReport.of(replace(swap.newest, signed=signed), pause_s=pause_s, finding=finding)
        )

    async def _report_version(self, proof: VersionReport) -> None:
        event(
            log,
            logging.INFO,
            "weights_proven",
            policy=proof.policy,
            digest=proof.state_digest.hex(),
            fallback=proof.fallback,
        )
        await self._report(proof)

    async def _write(self) -> Swap | None:
        engine, weights = self._engine, self._weights
        # A sound engine gets only the staged elements, without the host copy and its lock.
        if engine.policy is not None and not weights.pending.is_whole:
            swap = weights.pending.take()
            # `swap` found versions, and nothing was awaited since.
            assert swap is not None
            for staged in swap.staged:
                engine.check_fits(staged.layout)
            # From here until `swap` sets it, an exception leaves an engine that does not serve: it may be half written.
            engine.policy = None
            await asyncio.to_thread(engine.write, swap.updates())
            return swap
        # Otherwise all of it is written from the host copy, which must not change meanwhile.
        async with weights.host_lock:
            swap = weights.pending.take()
            if swap is None or weights.host.version is None:
                return None  # the host copy was lost meanwhile; a full state is requested
            assert swap.newest.signed == weights.host.version
            engine.check_fits(weights.host.layout)
            # An engine without a policy was never written or has failed its check, so it is checked after this.
            recovers = swap.recovers or engine.policy is None
            engine.policy = None
            await asyncio.to_thread(engine.write_all, weights.host.state)
            return replace(swap, whole=True, recovers=recovers)

    async def _check(self, signed: Signed) -> tuple[EngineCheck, Signed | None]:
        """Check the engine, and repair it if needed.

        Return the last finding, and the version that the engine then holds, or None if the repair did not help.
        """
        engine, weights = self._engine, self._weights
        self._num_since_check = 0
        finding = await asyncio.to_thread(engine.check, signed.state_digest, signed.probe_logprobs)
        if finding.is_sound:
            weights.engine_sound()
            return finding, signed
        # The trainer learns of the fault even if the repair helps.
        event(log, logging.ERROR, "engine_differs", policy=signed.policy, why=finding.why)
        await self._report(VersionReport.of_fault(signed.policy, finding))
        async with weights.host_lock:
            # Repair from the host copy if its hash is still right, since it is in the same machine's memory. It may be
            # newer than the version that was checked, because the subscription has gone on.
            if await asyncio.to_thread(weights.host.is_proven):
                again = weights.host.version
                assert again is not None
                weights.pending.clear()  # the host copy contains all pending versions
                await asyncio.to_thread(engine.write_all, weights.host.state)
                finding = await asyncio.to_thread(engine.check, again.state_digest, again.probe_logprobs)
                if finding.is_sound:
                    event(log, logging.WARNING, "engine_repaired", policy=again.policy)
                    return finding, again
            # Neither the engine nor the host copy is trusted any more: the next request is for a full state.
            weights.host.forget()
            weights.pending.clear()
        event(log, logging.ERROR, "engine_not_repaired", policy=signed.policy, why=finding.why)
        weights.engine_failed()
        return finding, None
