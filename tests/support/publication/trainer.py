"""A certified trainer's publications, complete and in one call: what its publisher streams."""

from typing import Any

from periplus.codec.weights.encoder import Encoder
from periplus.publication import Publication, PublisherKey, Trust
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from tests.support.keys import AUTHORITY
from trainer.publishing import publish
from trainer.publishing.publish import Bundle, Published


class Author:
    """Signs for one fork of one job."""

    def __init__(self, job_id: str = "job-1", fork: int = 0) -> None:
        self.job_id, self.fork, self.key = job_id, fork, PublisherKey.generate()
        self.authority_key = AUTHORITY.public_key
        self.certificate = AUTHORITY.certify(job_id, fork, self.key.public_key)
        self._signs = publish.Author(job_id=job_id, key=self.key, certificate=self.certificate)

    def trust(self) -> Trust:
        return Trust(self.authority_key, self.job_id)

    def bundle(self, bundle: Bundle, policy: Policy | None = None) -> Publication:
        return publish.bundle_publication(self._signs, policy or Policy(self.fork, 0), bundle)

    def anchor(self, published: Published) -> Publication:
        return self._state(None, published)

    def delta(self, base: Published, published: Published) -> Publication:
        return self._state(base, published)

    def _state(self, base: Published | None, published: Published) -> Publication:
        encoder = Encoder(None if base is None else base.state, published.state)
        writer = publish.state_writer(self._signs, encoder, published.policy, base)
        chunks = tuple(writer.chunk(part) for part in encoder.parts())
        closing = writer.closing(published.digest, published.probe)
        return Publication(opening=writer.opening, chunks=chunks, closing=closing)


def published_by(model: Any, policy: Policy, probe: tuple[float, ...] = ()) -> Published:
    """Return what a trainer with this model publishes as `policy`."""
    state = publish.bf16_state(model)
    return Published(policy=policy, state=state, digest=state_digest(state), probe=probe)
