"""What readers hold, and how it gets there: one publication after another, and a full state for who asks.

    next_version: wait for the version before, take a snapshot (rounded, probed); training goes on
    run:          scan and encode part i + 1  |  sign part i  |  the link sends what it has       then the closing
                  the new state's digest is computed beside it

Publications leave in the order of their versions, one at a time, by the one task that runs `run`. At most one snapshot
waits or is on its way, so there are never more than two states here: what readers hold and what they get. Of encoded
parts there are at most two, those that wait in the link, and the few that the encoder's threads are ahead.

A version is on record before its closing, which alone makes it one, can leave. A reader's proof of what it holds is
compared with the digest of that version; a mismatch is counted. The reader asks for what it needs by itself.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from periplus.audit import records as audit
from periplus.audit.seals import Sealer
from periplus.codec.weights.encoder import Encoder
from periplus.pb.v1 import gateway_pb2
from periplus.process.telemetry import event
from periplus.publication import Certificate, PublicationKind, PublicationWriter, PublisherKey
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.weight_state import WeightState
from trainer.intake.convert import proof_from_pb
from trainer.intake.gateway import GatewayLink
from trainer.intake.ledger_service import LedgerService
from trainer.publishing import publish, reference_logprobs
from trainer.publishing.publish import Author, Bundle, Published
from trainer.publishing.snapshot import Taken, Weights, weights_of
from trainer.reporting.delivery import Sent
from trainer.reporting.run_recorder import RunRecorder

log = logging.getLogger(__name__)

DIGESTS_KEPT = 256
"""Versions whose proofs are checked; a reader so far behind gets no leases anyway."""

SMALL = 0.5
"""A delta below this share of its state says that the next one pays too, unsampled: training does not change so much
between two steps, and where it does, a delta is no larger than a full state but for 1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    policy: Policy
    taken: Callable[[WeightState], Taken]
    probe: tuple[float, ...]
    started_s: float
    snapshot_s: float
    then: Callable[[Sent], None]


class Publisher:
    """One trainer's of one fork. `prompts_RP`: of the probe; `num_threads`: for encoding; `now` is monotonic."""

    def __init__(
        self,
        job_id: str,
        model: Any,
        policy: Policy,
        *,
        key: PublisherKey,
        link: GatewayLink,
        ledger_service: LedgerService,
        recorder: RunRecorder,
        prompts_RP: npt.NDArray[np.int64],
        num_threads: int,
        now: Callable[[], float],
    ) -> None:
        self._job_id = job_id
        self._model = model
        self._key = key
        self._link = link
        self._ledger_service = ledger_service
        self._recorder = recorder
        self._prompts_RP = prompts_RP
        self._num_threads = num_threads
        self._now = now
        self._policy = policy
        self._weights: Weights | None = None
        self._published: Published | None = None
        self._digests: dict[Policy, bytes] = {}
        self._author: Author | None = None
        self._deltas_pay = False
        self._handed: _Snapshot | None = None
        self._anchor_wanted = False
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        ledger_service.on_anchor_wanted = self._want_anchor
        ledger_service.on_proof = self._on_proof

    @property
    def digest(self) -> bytes:
        """Digest of what readers hold, or are about to, when all that was handed over is out. Not before `first`."""
        assert self._published is not None
        return self._published.digest

    async def run(self) -> None:
        """Publish what is handed over, and full states for who asks, until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            if self._handed is not None:
                await self._version(self._handed)
                self._handed = None
                self._idle.set()
            if self._anchor_wanted and self._author is not None and self._published is not None:
                await self._anchor(self._author, self._published)

    async def first(self, bundle: Bundle, certificate: Certificate) -> None:
        """The bundle, and the full state to start from. From here on the journal is sealed with the publisher's key."""
        await self._ledger_service.certified(Sealer(self._key, certificate))
        author = Author(job_id=self._job_id, key=self._key, certificate=certificate)
        self._weights, published = await asyncio.to_thread(self._begin)
        self._published = published
        self._remember(published.policy, published.digest)
        for record in publish.bundle_publication(author, published.policy, bundle).records():
            await self._link.publish(record)
        await self._ledger_service.milestone(audit.PublishEntry(policy=published.policy, digest=published.digest))
        self._recorder.published(await self._anchor(author, published))
        self._anchor_wanted = False  # who asked meanwhile has it
        self._author = author

    async def next_version(self, policy: Policy, then: Callable[[Sent], None]) -> None:
        """Publish the model's present weights as `policy`: once this returns, they may change. `then` is called when
        all of it was handed to the gateway."""
        await self._idle.wait()
        weights, started_s = self._weights, self._now()
        assert weights is not None, "the first publication comes first"
        taken, probed = await asyncio.to_thread(lambda: (weights.take(), self._probe()))
        self._handed = _Snapshot(
            policy=policy, taken=taken, probe=probed, started_s=started_s, snapshot_s=self._now() - started_s, then=then
        )
        self._idle.clear()
        self._work.set()

    async def drained(self) -> None:
        """Wait until all that was handed over is out."""
        await self._idle.wait()

    # ---- one publication ------------------------------------------------------------------------------------------

    def _begin(self) -> tuple[Weights, Published]:
        weights = weights_of(self._model)
        state = weights.first()
        return weights, Published(policy=self._policy, state=state, digest=state_digest(state), probe=self._probe())

    def _probe(self) -> tuple[float, ...]:
        logprobs_RP = reference_logprobs.logprobs(self._model, self._prompts_RP)
        is_finite = bool(np.isfinite(logprobs_RP).all())  # else there is nothing that an engine could agree with
        return tuple(logprobs_RP.reshape(-1).tolist()) if is_finite else ()

    async def _version(self, snapshot: _Snapshot) -> None:
        policy, base = snapshot.policy, self._published
        assert self._author is not None, "the first publication comes first"
        assert base is not None
        taken = await asyncio.to_thread(snapshot.taken, base.state)
        digesting = asyncio.ensure_future(asyncio.to_thread(state_digest, taken.state))
        try:
            is_delta = self._deltas_pay or await asyncio.to_thread(publish.delta_pays, base.state, taken.state)
            encoder = self._encoder(base.state if is_delta else None, taken)
            writer = publish.state_writer(self._author, encoder, policy, base if is_delta else None)
            encode_s = await self._parts(encoder, writer)
            digest = await digesting
        finally:
            digesting.cancel()
        await self._ledger_service.milestone(audit.PublishEntry(policy=policy, digest=digest))
        self._remember(policy, digest)
        await self._link.publish(writer.closing(digest, snapshot.probe))
        self._published = Published(policy=policy, state=taken.state, digest=digest, probe=snapshot.probe)
        if not is_delta:
            self._anchor_wanted = False
        self._deltas_pay = is_delta and encoder.stats.payload_bytes < SMALL * encoder.content_bytes
        sent = _sent(
            writer,
            encoder,
            started_s=snapshot.started_s,
            snapshot_s=snapshot.snapshot_s,
            encode_s=encode_s,
            now_s=self._now(),
        )
        self._recorder.published(sent)
        snapshot.then(sent)

    def _encoder(self, base: WeightState | None, taken: Taken) -> Encoder:
        changes = None if base is None else taken.changes
        return Encoder(base, taken.state, num_threads=self._num_threads, changes=changes)

    async def _anchor(self, author: Author, published: Published) -> Sent:
        self._anchor_wanted = False
        started_s = self._now()
        encoder = self._encoder(None, Taken(state=published.state))
        writer = publish.state_writer(author, encoder, published.policy, None)
        encode_s = await self._parts(encoder, writer)
        await self._link.publish(writer.closing(published.digest, published.probe))
        return _sent(writer, encoder, started_s=started_s, snapshot_s=0.0, encode_s=encode_s, now_s=self._now())

    async def _parts(self, encoder: Encoder, writer: PublicationWriter) -> float:
        """Opening and chunks; returns the seconds spent in the encoder."""
        parts, spent_s = encoder.parts(), 0.0

        def encode_next(parts: Iterator[bytes]) -> bytes | None:
            nonlocal spent_s
            started_s = self._now()
            part = next(parts, None)
            spent_s += self._now() - started_s
            return part

        await self._link.publish(writer.opening)
        coming = asyncio.ensure_future(asyncio.to_thread(encode_next, parts))
        try:
            while (part := await coming) is not None:
                coming = asyncio.ensure_future(asyncio.to_thread(encode_next, parts))
                await self._link.publish(await asyncio.to_thread(writer.chunk, part))
        finally:
            coming.cancel()
        return spent_s

    # ---- from readers ---------------------------------------------------------------------------------------------

    def _want_anchor(self) -> None:
        self._anchor_wanted = True
        self._work.set()

    def _remember(self, policy: Policy, digest: bytes) -> None:
        self._digests[policy] = digest
        if len(self._digests) > DIGESTS_KEPT:
            del self._digests[min(self._digests)]

    def _on_proof(self, worker_id: str, message: gateway_pb2.WeightProof) -> None:
        proof = proof_from_pb(message)
        self._recorder.proven(proof)
        expected = self._digests.get(proof.policy)
        if expected is None or (proof.ok and proof.digest == expected):
            return
        self._recorder.mismatched()
        event(log, logging.ERROR, "weights_differ", worker=worker_id, policy=proof.policy, ok=proof.ok, why=proof.why)


def _sent(
    writer: PublicationWriter, encoder: Encoder, *, started_s: float, snapshot_s: float, encode_s: float, now_s: float
) -> Sent:
    stats = encoder.stats
    return Sent(
        is_delta=writer.opening.kind is PublicationKind.DELTA,
        payload_bytes=stats.payload_bytes,
        content_bytes=encoder.content_bytes,
        num_elements=stats.num_elements,
        num_changed=stats.num_changed,
        snapshot_s=snapshot_s,
        encode_s=encode_s,
        publish_s=now_s - started_s,
    )
