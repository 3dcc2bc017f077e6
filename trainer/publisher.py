"""What readers hold, and how it gets there: one publication after another, and a full state for who asks.

Publications leave in the order of their versions. A reader's proof of what its engine holds is compared with the digest
of that version; a mismatch is counted. The reader asks for a full state by itself.
"""

import asyncio
import logging
from typing import Any

from periplus.audit import records as audit
from periplus.convert import policy_from_pb
from periplus.digest import state_digest
from periplus.pb.v1 import gateway_pb2
from periplus.policy import Policy
from periplus.publication import Publication, PublicationKind
from periplus.telemetry import event
from trainer import publish
from trainer.desk import Desk
from trainer.gateway import GatewayLink
from trainer.publish import Published
from trainer.scribe import Scribe

log = logging.getLogger(__name__)

DIGESTS_KEPT = 256
"""Versions whose proofs are checked; a reader so far behind gets no leases anyway."""


class Publisher:
    """One trainer's of one fork."""

    def __init__(
        self, job_id: str, model: Any, policy: Policy, *, link: GatewayLink, desk: Desk, scribe: Scribe,
        anchor_every_versions: int,
    ) -> None:  # fmt: skip
        self._job_id = job_id
        self._model = model
        self._link = link
        self._desk = desk
        self._scribe = scribe
        self._anchor_every = anchor_every_versions
        self._order = asyncio.Lock()
        self._anchor_wanted = asyncio.Event()
        state = publish.bf16_state(model)
        self._published = Published(policy=policy, state=state, digest=state_digest(state))
        self._digests = {policy: self._published.digest}
        desk.on_anchor_wanted = self._anchor_wanted.set
        desk.on_proof = self._on_proof

    @property
    def digest(self) -> bytes:
        """Of what readers hold when all is done."""
        return self._published.digest

    @property
    def full_bytes(self) -> int:
        """Size of the newest version without any compression."""
        return sum(tensor.data.size for tensor in self._published.state.values())

    async def run(self) -> None:
        """Answer requests for a full state, until cancelled."""
        while True:
            await self._anchor_wanted.wait()
            async with self._order:
                if self._anchor_wanted.is_set():
                    await self._anchor()

    async def first(self, bundle: Publication) -> None:
        """The bundle, and the full state to start from."""
        async with self._order:
            await self._link.publish(bundle)
            self._desk.milestone(audit.Publish(policy=self._published.policy, digest=self._published.digest))
            self._scribe.published(await self._anchor())

    async def next_version(self, policy: Policy) -> int:
        """Publish the model's present weights as `policy`; returns the bytes of the payload."""
        async with self._order:
            self._published, publication = await asyncio.to_thread(self._encode, policy)
            self._desk.milestone(audit.Publish(policy=policy, digest=self._published.digest))
            self._digests[policy] = self._published.digest
            if len(self._digests) > DIGESTS_KEPT:
                del self._digests[min(self._digests)]
            self._scribe.published(publication)
            await self._link.publish(publication)
            wanted = self._anchor_wanted.is_set() or policy.version % self._anchor_every == 0
            if publication.opening.kind is PublicationKind.ANCHOR:
                self._anchor_wanted.clear()
            elif wanted:  # for newcomers: readers that took the delta skip it
                await self._anchor()
            return len(publication.payload)

    def _encode(self, policy: Policy) -> tuple[Published, Publication]:
        return publish.next_version(self._job_id, self._published, policy, publish.bf16_state(self._model))

    async def _anchor(self) -> Publication:
        self._anchor_wanted.clear()
        anchor = await asyncio.to_thread(publish.anchor, self._job_id, self._published)
        await self._link.publish(anchor)
        return anchor

    def _on_proof(self, worker_id: str, proof: gateway_pb2.WeightProof) -> None:
        policy = policy_from_pb(proof.policy)
        expected = self._digests.get(policy)
        if expected is None or (proof.ok and proof.state_digest == expected):
            return
        self._scribe.mismatched()
        event(log, logging.ERROR, "weights_differ", worker=worker_id, policy=policy, ok=proof.ok)
