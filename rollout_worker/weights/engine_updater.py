"""Brings a worker's engine to the newest version that is proven in the host copy, beside the sampling.

It is a task of its own. Each update writes the pending versions (pending_versions.py) into the engine by `Engine.swap`,
between two tokens, and requests go on under the new weights. Every `check_every_versions` versions, and after each
recovery, it also checks the engine itself (engine_check.py). Requests go on meanwhile, but a result with a token of the
version under check is held back until the verdict (serving.py), so that no token of a version that failed leaves the
worker. An engine that has never been proven serves nothing before its first check has passed.

An engine that fails a check, or whose write fails half-way, is condemned: requests under way are aborted, and it is
written anew from the host copy if the copy still has the right hash, else from a full state that the trainer signed.
Until that is proven it does not serve. The same happens if the trainer finds that samples are not of the weights.

The subscription goes on meanwhile (reader.py). What both share, and who may touch it when, is in proven_weights.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from periplus import clock
from periplus.errors import PeriplusError, WrongBase, explained_error
from periplus.process.telemetry import event
from periplus.values.policy import Policy
from rollout_worker.engines.engine import (
    ChangedElements,
    Engine,
    EngineDied,
    OnSwap,
    SwapReport,
    WeightChange,
    WholeState,
)
from rollout_worker.weights.engine_check import EngineCheck, EngineChecker
from rollout_worker.weights.host_copy import Signed
from rollout_worker.weights.pending_versions import Swap, check_is_due
from rollout_worker.weights.proven_weights import ProvenWeights
from rollout_worker.weights.serving import Serving
from rollout_worker.weights.version_report import VersionReport

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SwapSettings:
    """`check_every_versions`: after how many versions the engine itself is checked. `probe_seed`: the job's seed.
    `relative_rounding`: the trainer's own, or None."""

    on_swap: OnSwap
    check_every_versions: int
    probe_seed: int
    relative_rounding: float | None = None


class EngineUpdater:
    """Updates one engine from the worker's proven weights, and tells `serving` what the engine may serve as.

    `report` sends a report of a version to the trainer.
    """

    def __init__(
        self,
        engine: Engine,
        weights: ProvenWeights,
        serving: Serving,
        report: Callable[[VersionReport], Awaitable[None]],
        settings: SwapSettings,
    ) -> None:
        self._engine = engine
        self._weights = weights
        self._serving = serving
        self._report = report
        self._settings = settings
        self._checker = EngineChecker(engine, settings.probe_seed, settings.relative_rounding)
        self._held: Policy | None = None  # what the engine holds; None if that is not proven
        self._num_since_check = 0
        self._news = asyncio.Event()
        self._doubt: EngineCheck | None = None  # what the trainer found
        self._starts_anew = False

    def doubt(self, why: str, *, starts_anew: bool) -> None:
        """Note that the trainer found samples of this engine that are not of its weights: `run` repairs it.

        With `starts_anew`, `run` raises a PeriplusError instead, so that the process ends.
        """
        self._doubt, self._starts_anew = EngineCheck(digest=b"", difference=None, why=why), starts_anew
        self._news.set()

    def wake(self) -> None:
        """Note that there may be a new version, or a failure of the subscription."""
        self._news.set()

    async def run(self) -> None:
        """Update whenever there is news. Raises: as `update`."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.update()

    async def update(self) -> None:
        """Repair an engine in doubt. Bring it to the newest proven version, check it if that is due, and report.

        Raises: WrongBase for weights that do not fit the engine's model; EngineDied; PeriplusError when repairs do not
        help.
        """
        # Failures that the subscription has counted end the process here: its own task would only subscribe again.
        self._weights.raise_if_hopeless()
        await self._answer_doubt()
        pending = self._weights.pending
        pending.skip_to(self._held)
        if not pending:
            return
        swap, written = await self._write()
        if swap is None:
            return
        finding: EngineCheck | None
        if isinstance(written, EngineCheck):
            finding, signed, pause_s = await self._repair(swap.newest.signed.policy, written)
        else:
            finding, signed, pause_s = await self._verify(swap, written)
        # The repair failed. The engine does not serve until the full state that the subscription now requests is
        # written.
        if signed is None:
            self._weights.raise_if_hopeless()
            return
        self._held = signed.policy
        self._serving.sound(signed.policy)
        # Report the skipped versions too; after a repair only the one that the engine holds.
        skipped = swap.versions[:-1] if signed is swap.newest.signed else ()
        for version in skipped:
            await self._report_version(VersionReport.of(version))
        newest = replace(swap.newest, signed=signed)
        await self._report_version(VersionReport.of(newest, pause_s=pause_s, finding=finding))

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

    # ---- write ----------------------------------------------------------------------------------------------------

    async def _write(self) -> tuple[Swap | None, SwapReport | EngineCheck]:
        """Write what is pending. Return the swap, and the engine's report or what went wrong.

        The swap is None if nothing was written after all.
        """
        weights = self._weights
        # A sound engine gets only the staged elements, without the host copy and its lock.
        if self._held is not None and not weights.pending.is_whole:
            swap = weights.pending.take()
            # `update` found versions, and nothing was awaited since.
            assert swap is not None
            return swap, await self._swap(ChangedElements(staged=swap.staged), swap.newest.signed.policy)
        # Otherwise all of it is written from the host copy, which must not change meanwhile.
        async with weights.host_lock:
            swap = weights.pending.take()
            if swap is None or weights.host.version is None:
                # The host copy was lost meanwhile; a full state is requested.
                return None, SwapReport(write_s=0.0, pause_s=0.0)
            assert swap.newest.signed == weights.host.version
            # An engine that holds nothing proven is checked after this.
            swap = replace(swap, whole=True, recovers=swap.recovers or self._held is None)
            return swap, await self._swap_whole(swap.newest.signed.policy)

    async def _swap_whole(self, policy: Policy) -> SwapReport | EngineCheck:
        host = self._weights.host
        return await self._swap(WholeState(layout=host.layout, state=host.state), policy)

    async def _swap(self, change: WeightChange, policy: Policy) -> SwapReport | EngineCheck:
        if self._held is not None and self._held.fork < policy.fork:
            # A sample never has tokens of two forks: nobody waits for the old one's samples any more.
            await self._engine.abort(self._serving.leave_fork(policy.fork))
        # While DRAIN waits for the requests under way, they end under the old weights and are in no doubt.
        if self._settings.on_swap is not OnSwap.DRAIN:
            self._serving.writing()
        try:
            return await self._engine.swap(change, policy, self._settings.on_swap)
        except (EngineDied, WrongBase):
            raise
        except Exception as error:  # an engine's own code may raise anything, and its weights may be half written
            return EngineCheck(digest=b"", difference=None, why=f"writing weights failed: {explained_error(error)}")

    # ---- check ----------------------------------------------------------------------------------------------------

    async def _verify(self, swap: Swap, written: SwapReport) -> tuple[EngineCheck | None, Signed | None, float]:
        """Check the engine if that is due, and repair it if needed.

        Return the last finding, if there was a check, the version that the engine then holds, or None if the repair did
        not help, and the seconds for which generation paused.
        """
        signed, was_proven = swap.newest.signed, self._held is not None
        self._num_since_check += len(swap.versions)
        is_due = check_is_due(swap, self._num_since_check, self._settings.check_every_versions)
        event(
            log,
            logging.DEBUG,
            "weights",
            policy=signed.policy,
            versions=len(swap.versions),
            whole=swap.whole,
            write_s=written.write_s,
            pause_s=written.pause_s,
            checked=is_due,
        )
        self._serving.written(signed.policy, may_serve=was_proven, in_doubt=is_due)
        if not is_due:
            return None, signed, written.pause_s
        self._num_since_check = 0
        finding = await self._check(signed)
        if finding.is_sound:
            return finding, signed, written.pause_s
        return await self._repair(signed.policy, finding)

    async def _check(self, signed: Signed) -> EngineCheck:
        began_s = clock.monotonic_s()
        finding = await self._checker.check(signed)
        if finding.is_sound:
            self._weights.engine_sound()
        event(
            log,
            logging.DEBUG,
            "engine_checked",
            policy=signed.policy,
            sound=finding.is_sound,
            check_s=clock.monotonic_s() - began_s,
            probe_nats=None if finding.difference is None else finding.difference.mean,
        )
        return finding

    async def _repair(self, policy: Policy, finding: EngineCheck) -> tuple[EngineCheck, Signed | None, float]:
        """Stop serving `policy`, and write the engine anew if the host copy is sound. Returns as `_verify` does."""
        began_s = clock.monotonic_s()
        weights, self._held = self._weights, None
        await self._engine.abort(self._serving.condemn())
        # The trainer learns of the fault even if the repair helps.
        event(log, logging.ERROR, "engine_differs", policy=policy, why=finding.why)
        await self._report(VersionReport.of_fault(policy, finding))
        async with weights.host_lock:
            # Repair from the host copy if its hash is still right, since it is in the same machine's memory. It may be
            # newer than the version that was checked, because the subscription has gone on.
            if await asyncio.to_thread(weights.host.is_proven):
                again = weights.host.version
                assert again is not None
                weights.pending.clear()  # the host copy contains all pending versions
                written = await self._swap_whole(again.policy)
                finding = written if isinstance(written, EngineCheck) else await self._check(again)
                if finding.is_sound:
                    event(log, logging.WARNING, "engine_repaired", policy=again.policy)
                    return finding, again, clock.monotonic_s() - began_s
            # Neither the engine nor the host copy is trusted any more: the next request is for a full state.
            weights.host.forget()
            weights.pending.clear()
        event(log, logging.ERROR, "engine_not_repaired", policy=policy, why=finding.why)
        weights.engine_failed()
        return finding, None, clock.monotonic_s() - began_s

    async def _answer_doubt(self) -> None:
        """Repair the engine if the trainer doubts it. Raises: PeriplusError if the process is to start anew."""
        # An engine that holds nothing proven is written anew without this; the doubt waits until it is.
        if self._doubt is None or self._held is None:
            return
        finding, self._doubt = self._doubt, None
        if self._starts_anew:
            await self._report(VersionReport.of_fault(self._held, finding))
            raise PeriplusError(f"the trainer found again that samples are not of the engine's weights: {finding.why}")
        finding, signed, pause_s = await self._repair(self._held, finding)
        if signed is not None:
            self._held = signed.policy
            self._serving.sound(signed.policy)
            await self._report_version(VersionReport.of_repair(signed, finding, pause_s))
