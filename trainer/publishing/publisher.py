"""The publisher: it sends each version of the weights to the gateway beside training, and checks readers' proofs.

A publication has an opening, chunks (one for each part that the encoder makes) and a closing. *Readers* are gateways
and workers that hold copies of the weights. Two tasks share the work:

    next_version (training loop)   waits for the version before, takes a snapshot (rounding and probe), returns
    run (a task of its own)        encodes part i + 1  |  signs part i  |  the link sends earlier parts
                                   beside these, a thread computes the digest of the new state; the closing comes last

If a reader cannot continue from what it has, it asks for an anchor: `run` then sends the current full state again.
After a lost connection to the gateway was opened again, nobody knows what the gateway has received. `run` then sends
the bundle and the current full state again before anything else. Until the bundle, the link discards all records.

Invariants:
- Publications leave in the order of their versions, one at a time.
- At most one snapshot waits or is being sent. So there are at most two states here: the one that readers hold, and the
  one that they are getting. Of the encoded parts, two are here, besides those that wait in the link and those that the
  encoder's threads have made ahead.
- The audit has the line of a version before its closing is sent. Without the closing, no reader takes it for a version.
- The proof by which a reader says what it holds is compared with the version's digest, and a mismatch is counted.
  Repair is the reader's task: it asks for what it needs.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from periplus.audit import records as audit
from periplus.audit.seals import Sealer
from periplus.codec.weights.encoder import Encoder
from periplus.process.telemetry import event
from periplus.publication import Certificate, Publication, PublicationKind, PublicationWriter, PublisherKey
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.weight_state import WeightState
from trainer.intake.gateway import GatewayLink
from trainer.intake.write_ahead import WriteAheadJournal
from trainer.publishing import publish
from trainer.publishing.publish import Author, Bundle, Published
from trainer.publishing.snapshot import Taken, Weights
from trainer.reporting.delivery import ReaderProof, Sent
from trainer.reporting.run_recorder import RunRecorder

log = logging.getLogger(__name__)

DIGESTS_KEPT = 256
"""Number of newest versions whose proofs are checked. A reader that is farther behind gets no leases anyway. Chosen by
hand."""

SMALL_DELTA_SHARE = 0.5
"""If a delta is smaller than this share of the full state, the next version is sent as a delta without sampling. Deltas
of successive steps are similar in size, and even a dense delta is at most 1 % larger than a full state. Chosen by
hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    policy: Policy
    taken: Callable[[WeightState], Taken]  # makes the state on the host, given the state of the version before
    probe: tuple[float, ...]
    started_s: float
    snapshot_s: float
    then: Callable[[Sent], None]  # called when all records of the version were handed to the gateway


class Publisher:
    """Publishes the versions of one fork of one job.

    `policy` is the version of `weights` at the start. `key` signs publications once the coordinator has certified it.
    `prompts_RP` are the token ids of the probe's prompts, [R prompts, P tokens]. `num_threads` encode. `now` returns
    seconds on a monotonic clock. `keep` is told each version before any reader has it.
    """

    def __init__(
        self,
        job_id: str,
        weights: Weights,
        policy: Policy,
        *,
        key: PublisherKey,
        link: GatewayLink,
        journal: WriteAheadJournal,
        recorder: RunRecorder,
        prompts_RP: npt.NDArray[np.int64],
        num_threads: int,
        now: Callable[[], float],
        keep: Callable[[Policy, WeightState], None] = lambda policy, state: None,
    ) -> None:
        self._job_id = job_id
        self._weights = weights
        self._key = key
        self._link = link
        self._journal = journal
        self._recorder = recorder
        self._prompts_RP = prompts_RP
        self._num_threads = num_threads
        self._now = now
        self._keep = keep
        # State of publishing: what readers hold now; for proofs, the digests of the newest versions and when their
        # training steps ended.
        self._policy = policy
        self._published: Published | None = None
        self._digests: dict[Policy, bytes] = {}
        self._trained_s: dict[Policy, float] = {}
        self._author: Author | None = None
        self._deltas_pay = False
        # Work for `run`: the snapshot that waits or is being sent, and whether a reader needs an anchor.
        self._handed: _Snapshot | None = None
        self._anchor_wanted = False
        # The bundle as it was published, and whether it and the full state must be sent over a new connection.
        self._bundle: Publication | None = None
        self._begins_anew = False
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def newest(self) -> Policy:
        """The version that was published last. Call `first` before, and `drained` for the newest one."""
        assert self._published is not None
        return self._published.policy

    @property
    def digest(self) -> bytes:
        """Digest of the version that was published last. Call `first` before, and `drained` for the newest version."""
        assert self._published is not None
        return self._published.digest

    async def run(self) -> None:
        """Publish the versions that `next_version` hands over, and what is wanted again, until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            if self._begins_anew and self._author is not None and self._published is not None:
                # First, since the gateway may not have the version from which the next delta starts.
                await self._send_bundle()
                await self._anchor(self._author, self._published)
            if self._handed is not None:
                await self._version(self._handed)
                self._handed = None
                # `next_version` and `drained` wait for this.
                self._idle.set()
            if self._anchor_wanted and self._author is not None and self._published is not None:
                await self._anchor(self._author, self._published)

    async def first(self, bundle: Bundle, certificate: Certificate) -> None:
        """Publish the bundle and the first full state. From here on the publisher's key also seals the journal.

        `certificate` is the coordinator's certificate of the publisher's key.
        """
        # The journal is sealed from here, so that the lines of publications are signed.
        await self._journal.begin_sealing(Sealer(self._key, certificate))
        author = Author(job_id=self._job_id, key=self._key, certificate=certificate)
        self._published = published = await asyncio.to_thread(self._begin)
        self._remember(published.policy, published.digest)
        self._keep(published.policy, published.state)
        self._bundle = publish.bundle_publication(author, published.policy, bundle)
        await self._send_bundle()
        # On record before the closing, which makes the anchor a version.
        await self._journal.write_milestone(audit.PublishEntry(policy=published.policy, digest=published.digest))
        self._recorder.add_publication(await self._anchor(author, published))
        self._anchor_wanted = False  # a reader that asked meanwhile has it now
        # Set last: `run` sends no anchor before the first one. The gateway may have been lost and found meanwhile.
        self._author = author
        self._work.set()

    async def next_version(self, policy: Policy, then: Callable[[Sent], None]) -> None:
        """Take a snapshot of the model's weights, to be published as `policy`. Once this returns, they may change.

        This first waits until the version before is published. `then` is called when all records of this version were
        handed to the gateway.
        """
        await self._idle.wait()
        weights, started_s = self._weights, self._now()
        self._trained_s[policy] = started_s
        assert self._published is not None, "the first publication comes first"
        # In a thread, but training waits: the weights must not change between rounding and probe.
        taken, probed = await asyncio.to_thread(lambda: (weights.take(), self._probe()))
        self._handed = _Snapshot(
            policy=policy, taken=taken, probe=probed, started_s=started_s, snapshot_s=self._now() - started_s, then=then
        )
        self._idle.clear()
        self._work.set()

    async def drained(self) -> None:
        """Wait until all records of the version that was handed over last were handed to the gateway."""
        await self._idle.wait()

    # ---- one publication ------------------------------------------------------------------------------------------

    def _begin(self) -> Published:
        state = self._weights.first()
        return Published(policy=self._policy, state=state, digest=state_digest(state), probe=self._probe())

    def _probe(self) -> tuple[float, ...]:
        logprobs_RP = self._weights.probe(self._prompts_RP)
        is_finite = bool(np.isfinite(logprobs_RP).all())  # without finite numbers there is nothing to compare
        return tuple(logprobs_RP.reshape(-1).tolist()) if is_finite else ()

    async def _version(self, snapshot: _Snapshot) -> None:
        # Make the new state on the host, and hash it in a thread while it is encoded, signed and sent.
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
            # The closing carries the digest, so it is needed only after all parts are sent.
            digest = await digesting
        finally:
            digesting.cancel()
        # The audit records the version before the closing makes it one. From then on readers may prove it.
        await self._journal.write_milestone(audit.PublishEntry(policy=policy, digest=digest))
        self._remember(policy, digest)
        self._keep(policy, taken.state)
        await self._link.publish(writer.closing(digest, snapshot.probe))
        self._published = Published(policy=policy, state=taken.state, digest=digest, probe=snapshot.probe)
        if not is_delta:
            self._anchor_wanted = False
        self._deltas_pay = is_delta and encoder.stats.payload_bytes < SMALL_DELTA_SHARE * encoder.content_bytes
        sent = _sent(
            writer,
            encoder,
            started_s=snapshot.started_s,
            snapshot_s=snapshot.snapshot_s,
            encode_s=encode_s,
            now_s=self._now(),
        )
        self._recorder.add_publication(sent)
        snapshot.then(sent)

    def _encoder(self, base: WeightState | None, taken: Taken) -> Encoder:
        changes = None if base is None else taken.changes
        return Encoder(base, taken.state, num_threads=self._num_threads, changes=changes)

    async def _send_bundle(self) -> None:
        # Cleared first: if the gateway is lost and found once more meanwhile, all is sent once more.
        self._begins_anew = False
        assert self._bundle is not None, "the first publication makes it"
        for record in self._bundle.records():
            await self._link.publish(record)

    async def _anchor(self, author: Author, published: Published) -> Sent:
        self._anchor_wanted = False
        started_s = self._now()
        encoder = self._encoder(None, Taken(state=published.state))
        writer = publish.state_writer(author, encoder, published.policy, None)
        encode_s = await self._parts(encoder, writer)
        await self._link.publish(writer.closing(published.digest, published.probe))
        return _sent(writer, encoder, started_s=started_s, snapshot_s=0.0, encode_s=encode_s, now_s=self._now())

    async def _parts(self, encoder: Encoder, writer: PublicationWriter) -> float:
        """Send the opening and all chunks, and return the seconds that were spent in the encoder."""
        parts, spent_s = encoder.parts(), 0.0

        def encode_next(parts: Iterator[bytes]) -> bytes | None:
            nonlocal spent_s
            started_s = self._now()
            part = next(parts, None)
            spent_s += self._now() - started_s
            return part

        # The opening goes first, so readers can decode parts as they come.
        await self._link.publish(writer.opening)
        # While one part is signed and sent, a thread encodes the next one.
        coming = asyncio.ensure_future(asyncio.to_thread(encode_next, parts))
        try:
            while (part := await coming) is not None:
                coming = asyncio.ensure_future(asyncio.to_thread(encode_next, parts))
                await self._link.publish(await asyncio.to_thread(writer.chunk, part))
        finally:
            coming.cancel()
        return spent_s

    # ---- from readers ---------------------------------------------------------------------------------------------

    def want_anchor(self) -> None:
        """Publish a full state of the newest version as soon as nothing else is under way."""
        self._anchor_wanted = True
        self._work.set()

    def begin_anew(self) -> None:
        """Publish the bundle and a full state of the newest version over a new connection to the gateway."""
        self._begins_anew = True
        self._work.set()

    def _remember(self, policy: Policy, digest: bytes) -> None:
        self._digests[policy] = digest
        if len(self._digests) > DIGESTS_KEPT:
            oldest = min(self._digests)
            del self._digests[oldest]
            self._trained_s.pop(oldest, None)

    def on_proof(self, worker_id: str, proof: ReaderProof) -> None:
        """Compare what a worker holds with what was published, and record both outcomes."""
        trained_s = self._trained_s.get(proof.policy)
        self._recorder.add_proof(worker_id, proof, None if trained_s is None else self._now() - trained_s)
        # A version that is no longer remembered is not compared.
        expected = self._digests.get(proof.policy)
        if expected is None or (proof.ok and proof.digest == expected):
            return
        self._recorder.count_mismatch()
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
