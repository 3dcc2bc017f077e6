"""Reads the job's publications, verifies them, and brings the worker's host copy to the newest version.

`subscription` takes records as they come from the gateway (rollout_worker/gateway.py). They are verified, decoded and
proven in the host copy (incoming.py, in threads) while the engine generates. The engine gets the proven versions
between two batches (engine_updater.py). subscription.py decides what to ask for after a failure.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace

from periplus import clock
from periplus.errors import Conflict, CorruptFrame, Forged, PeriplusError, WireError
from periplus.process.telemetry import event
from periplus.publication import Closing, Trust
from rollout_worker.weights.incoming import (
    Incoming,
    Outcome,
    ReceivedBundle,
    ReceivedRecord,
    WeightMismatch,
    kind_of,
)
from rollout_worker.weights.pending_versions import Version
from rollout_worker.weights.proven_weights import ProvenWeights
from rollout_worker.weights.subscription import SubscriptionRequest
from rollout_worker.weights.version_report import VersionReport

log = logging.getLogger(__name__)

MAX_HOST_COPY_BYTES = 64 << 30
"""Largest state, in bytes, that a worker takes into its host memory: 34 billion parameters in bfloat16. It bounds what
a wrong opening can make this process allocate. Chosen by hand."""


Subscribe = Callable[[SubscriptionRequest, asyncio.Event], AbstractAsyncContextManager[AsyncIterator[ReceivedRecord]]]
"""Opens a subscription. Its records end by an error, at the latest after the event is set."""


class WeightReader:
    """The reader of one worker.

    `trust` says whose publications it accepts. `subscribe` opens a subscription and gives its records, until it fails
    or the event is set. `report` sends a report of a version to the trainer. `wake` is called when there may be
    something new: a bundle, a version, or a failure. `bundle` is the job's bundle once it has come.
    """

    def __init__(
        self,
        weights: ProvenWeights,
        trust: Trust,
        subscribe: Subscribe,
        report: Callable[[VersionReport], Awaitable[None]],
        wake: Callable[[], None],
    ) -> None:
        self._weights = weights
        self._trust = trust
        self._subscribe = subscribe
        self._report = report
        self._wake = wake
        self._highest_fork = 0
        self.bundle: ReceivedBundle | None = None
        self.num_refused: Counter[str] = Counter()  # by the error's class

    async def subscription(self) -> None:
        """Run one subscription, from the version that the host copy has.

        Raises: always a PeriplusError, because a subscription ends only by an error.
        """
        weights = self._weights
        # If the event asked for a new subscription, this is it.
        weights.again.clear()
        state = weights.failures
        if state.asks_from_nothing:
            # `swap` may be writing the engine from the host copy.
            async with weights.host_lock:
                weights.begin_anew()
        incoming = Incoming(
            self._trust,
            weights.host,
            highest_fork=self._highest_fork,
            distrust=state.distrust,
            max_content_bytes=MAX_HOST_COPY_BYTES,
        )
        request = state.request(weights.host.policy, has_bundle=self.bundle is not None)
        async with self._subscribe(request, weights.again) as records:
            await self._read(records, incoming)

    async def _read(self, records: AsyncIterator[ReceivedRecord], incoming: Incoming) -> None:
        opened_s = busy_s = 0.0
        async for record in records:
            came_s = clock.monotonic_s()
            # Times of a version count from its opening.
            if kind_of(record) == "opening":
                opened_s, busy_s = came_s, 0.0
            # Only a closing writes into the host copy. The lock is held until the version is pending, because `swap`
            # relies on the newest pending version being the one in the copy.
            async with self._weights.host_lock if isinstance(record, Closing) else nullcontext():
                began_s = clock.monotonic_s()  # not earlier: `swap` may have held the lock for long
                outcome = await self._take(record, incoming)
                busy_s += clock.monotonic_s() - began_s
                if isinstance(outcome, Version):
                    self._weights.proven(replace(outcome, transfer_s=came_s - opened_s, apply_s=busy_s))
                    self._wake()
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
        self._weights.refused(is_derived=is_derived)
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

    async def _mismatched(self, mismatch: WeightMismatch) -> None:
        self._weights.mismatched()
        event(log, logging.ERROR, "weights_differ", policy=mismatch.policy, why=mismatch.why)
        await self._report(
            VersionReport(policy=mismatch.policy, state_digest=mismatch.digest, ok=False, why=mismatch.why)
        )
        self._wake()
        raise CorruptFrame(f"{mismatch.policy}: {mismatch.why}; a full state that the trainer signed is needed")
