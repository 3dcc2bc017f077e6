"""Reads the job's publications from the worker's own gateway, and brings the engine to the newest version.

Two tasks share the reader:

- `subscription` takes records as they come. They are verified, decoded and proven in the host copy (incoming.py, in
  threads) while the engine generates.
- `swap` is called between two batches, when nothing generates. It writes the pending versions (pending_versions.py)
  into the engine. Only this pauses generation, and the pause is measured.

Every `check_every_versions` versions, and after each recovery, `swap` also checks the engine's own tensors before they
serve (engine_writer.py). An engine that fails is written anew from the host copy if the copy still has the right hash,
else from a full state that the trainer signed (subscription.py decides what to ask for). Until the repair `policy` is
None, and the engine does not serve.

`_host_lock` is held by whoever writes or hashes the host copy, or writes the engine from it. A thread that holds it is
never abandoned: a subscription that must begin anew (`_again`) is left only between two records. The stream itself is
in rollout_worker/gateway.py.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace

from periplus import clock
from periplus.errors import Conflict, CorruptFrame, Forged, PeriplusError, WireError
from periplus.process.telemetry import event
from periplus.publication import Closing, Trust
from periplus.values.policy import Policy
from rollout_worker.weights.engine_writer import EngineCheck, EngineWeights
from rollout_worker.weights.host_copy import HostCopy, Signed
from rollout_worker.weights.incoming import (
    Incoming,
    Outcome,
    ReceivedBundle,
    ReceivedRecord,
    WeightMismatch,
    kind_of,
)
from rollout_worker.weights.pending_versions import PendingVersions, Swap, Version, check_is_due
from rollout_worker.weights.subscription import SubscriptionRequest, SubscriptionState
from rollout_worker.weights.version_report import VersionReport

log = logging.getLogger(__name__)

MAX_CONTENT_BYTES = 64 << 30
"""Largest state that is accepted: more than any model that fits into the host memory of one machine. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """Which job is read, and how it is checked.

    `authority_key` is the public key of the job authority, whose certificates the reader accepts.
    `check_every_versions`: after how many versions the engine itself is checked.
    """

    job_id: str
    authority_key: bytes
    check_every_versions: int


Subscribe = Callable[[SubscriptionRequest, asyncio.Event], AbstractAsyncContextManager[AsyncIterator[ReceivedRecord]]]
"""Opens a subscription. Its records end by an error, at the latest after the event is set."""


class WeightReader:
    """The reader of one worker.

    `subscribe` opens a subscription and gives its records, until it fails or the event is set. `report` sends a report
    of a version to the trainer. `wake` is called when there may be something new: a bundle, or work for `swap`.
    `bundle` is the job's bundle once it has come.
    """

    def __init__(
        self,
        settings: ReaderSettings,
        subscribe: Subscribe,
        report: Callable[[VersionReport], Awaitable[None]],
        wake: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._trust = Trust(settings.authority_key, settings.job_id)
        self._subscribe = subscribe
        self._report = report
        self._wake = wake
        self._host = HostCopy()
        self._host_lock = asyncio.Lock()
        self._pending = PendingVersions()
        self._state = SubscriptionState()
        self._again = asyncio.Event()
        self._engine: EngineWeights | None = None
        self._num_since_check = 0
        self._highest_fork = 0
        self.bundle: ReceivedBundle | None = None
        self.num_refused: Counter[str] = Counter()  # by the error's class

    @property
    def policy(self) -> Policy | None:
        """Policy that the engine may serve as; None if it must not serve."""
        return None if self._engine is None else self._engine.policy

    def attach(self, engine: EngineWeights) -> None:
        """Set the engine that was built from the bundle."""
        self._engine = engine

    # ---- the subscription -----------------------------------------------------------------------------------------

    async def subscription(self) -> None:
        """Run one subscription, from the version that the host copy has.

        Raises: always a PeriplusError, because a subscription ends only by an error.
        """
        self._again.clear()
        state = self._state
        if state.asks_from_nothing:
            async with self._host_lock:
                self._host.forget()
                self._pending.host_is_lost()
        incoming = Incoming(
            self._trust,
            self._host,
            highest_fork=self._highest_fork,
            distrust=state.distrust,
            max_content_bytes=MAX_CONTENT_BYTES,
        )
        request = state.request(self._host.policy, has_bundle=self.bundle is not None)
        async with self._subscribe(request, self._again) as records:
            await self._read(records, incoming)

    async def _read(self, records: AsyncIterator[ReceivedRecord], incoming: Incoming) -> None:
        opened_s = busy_s = 0.0
        async for record in records:
            came_s = clock.monotonic_s()
            if kind_of(record) == "opening":
                opened_s, busy_s = came_s, 0.0
            async with self._host_lock if isinstance(record, Closing) else nullcontext():
                began_s = clock.monotonic_s()  # not earlier: `swap` may have held the lock for long
                outcome = await self._take(record, incoming)
                busy_s += clock.monotonic_s() - began_s
                if isinstance(outcome, Version):
                    self._proven(replace(outcome, transfer_s=came_s - opened_s, apply_s=busy_s))
            if isinstance(outcome, ReceivedBundle) and self.bundle is None:
                self.bundle = outcome
                self._wake()
            elif isinstance(outcome, WeightMismatch):
                await self._mismatched(outcome)

    async def _take(self, record: ReceivedRecord, incoming: Incoming) -> Outcome:
        try:
            return await asyncio.to_thread(incoming.take, record)
        except (WireError, Conflict) as error:
            self._refused(record, error, is_derived=incoming.is_of_derived(record))
            raise
        finally:
            self._highest_fork = incoming.highest_fork

    def _refused(self, record: ReceivedRecord, error: PeriplusError, *, is_derived: bool) -> None:
        kind = type(error).__name__
        self._state = self._state.refused(derived=is_derived)
        self.num_refused[kind] += 1
        self._wake()  # `swap` ends the process if there have been too many
        event(
            log,
            logging.ERROR if isinstance(error, Forged) else logging.WARNING,
            "publication_refused",
            record=kind_of(record),
            error=kind,
            why=error,
            derived=is_derived,
            count=self.num_refused[kind],
        )

    def _proven(self, version: Version) -> None:
        self._state = self._state.proven()
        self._pending.add(version)
        self._wake()

    async def _mismatched(self, mismatch: WeightMismatch) -> None:
        self._state = self._state.mismatched()
        self._pending.host_is_lost()
        event(log, logging.ERROR, "weights_differ", policy=mismatch.policy, why=mismatch.why)
        await self._report(
            VersionReport(policy=mismatch.policy, state_digest=mismatch.digest, ok=False, why=mismatch.why)
        )
        self._wake()
        raise CorruptFrame(f"{mismatch.policy}: {mismatch.why}; a full state that the trainer signed is needed")

    # ---- the engine -----------------------------------------------------------------------------------------------

    async def swap(self) -> None:
        """Bring the engine to the newest proven version, check it if that is due, and report.

        Call it between two batches. Raises: WrongBase for weights that do not fit the engine's model; PeriplusError
        when repairs do not help.
        """
        self._end_if_hopeless()
        engine = self._engine
        if engine is None:
            return
        self._pending.skip_to(engine.policy)
        if not self._pending:
            return
        began_s = clock.monotonic_s()
        # Write: from here on, generation has to wait.
        swap = await self._write(engine)
        if swap is None:
            return
        written_s = clock.monotonic_s()
        # Check the engine itself if that is due; `signed` is then what it holds, or None.
        self._num_since_check += len(swap.versions)
        finding: EngineCheck | None = None
        signed: Signed | None = swap.newest.signed
        if check_is_due(swap, self._num_since_check, self._settings.check_every_versions):
            finding, signed = await self._check(engine, swap.newest.signed)
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
        if signed is None:
            self._end_if_hopeless()
            return
        # Report the skipped versions too; after a repair only the one that the engine holds.
        skipped = swap.versions[:-1] if signed is swap.newest.signed else ()
        for version in skipped:
            await self._tell(VersionReport.of(version))
        await self._tell(VersionReport.of(replace(swap.newest, signed=signed), pause_s=pause_s, finding=finding))

    def _end_if_hopeless(self) -> None:
        if why := self._state.hopeless:
            raise PeriplusError(f"{why}; memory or software is broken, here or at the trainer: see the log")

    async def _tell(self, proof: VersionReport) -> None:
        event(
            log,
            logging.INFO,
            "weights_proven",
            policy=proof.policy,
            digest=proof.state_digest.hex(),
            fallback=proof.fallback,
        )
        await self._report(proof)

    async def _write(self, engine: EngineWeights) -> Swap | None:
        # A sound engine gets only the staged elements, without the host copy and its lock.
        if engine.policy is not None and not self._pending.is_whole:
            swap = self._pending.take()
            assert swap is not None
            for staged in swap.staged:
                engine.check_fits(staged.layout)
            engine.policy = None
            await asyncio.to_thread(engine.write, swap.updates())
            return swap
        # Otherwise all of it is written from the host copy, which must not change meanwhile.
        async with self._host_lock:
            swap = self._pending.take()
            if swap is None or self._host.version is None:
                return None  # the host copy was lost meanwhile; a full state is requested
            assert swap.newest.signed == self._host.version
            engine.check_fits(self._host.layout)
            recovers = swap.recovers or engine.policy is None
            engine.policy = None
            await asyncio.to_thread(engine.write_all, self._host.state)
            return replace(swap, whole=True, recovers=recovers)

    async def _check(self, engine: EngineWeights, signed: Signed) -> tuple[EngineCheck, Signed | None]:
        """Check the engine, and repair it if needed.

        Return the last finding, and the version that the engine then holds, or None if the repair did not help.
        """
        self._num_since_check = 0
        finding = await asyncio.to_thread(engine.check, signed.state_digest, signed.probe_logprobs)
        if finding.is_sound:
            self._state = self._state.engine_sound()
            return finding, signed
        event(log, logging.ERROR, "engine_differs", policy=signed.policy, why=finding.why)
        await self._report(VersionReport.of_fault(signed.policy, finding))
        async with self._host_lock:
            if await asyncio.to_thread(self._host.is_proven):
                again = self._host.version
                assert again is not None
                self._pending.clear()  # the host copy contains all pending versions
                await asyncio.to_thread(engine.write_all, self._host.state)
                finding = await asyncio.to_thread(engine.check, again.state_digest, again.probe_logprobs)
                if finding.is_sound:
                    event(log, logging.WARNING, "engine_repaired", policy=again.policy)
                    return finding, again
            self._host.forget()
            self._pending.clear()
        self._state = self._state.engine_failed()
        event(log, logging.ERROR, "engine_not_repaired", policy=signed.policy, why=finding.why)
        self._again.set()
        return finding, None
