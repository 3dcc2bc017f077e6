"""Links of the chain: complete publications that lead from one state to the next.

A link is in memory (`InMemory`) or on disk (`disk.stored_publication.StoredPublication`), and is read part by part.
What decides looks only at openings and closings.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from periplus.publication import Attestation, Chunk, Closing, Opening, Publication, PublicationRecord
from periplus.values.policy import Policy

MAX_RELAYED_BYTES = 1 << 46
"""Largest state, in bytes, that a gateway passes on and keeps: 64 TiB, more than any model. It guards against nonsense
only, because trust rests on the trainer's signature, and nothing is allocated for a state before its parts are here.
Chosen by hand."""


class ChainLink(Protocol):
    """One complete publication in the chain: a delta, or an anchor."""

    @property
    def opening(self) -> Opening: ...

    @property
    def closing(self) -> Closing: ...

    def part(self, index: int) -> bytes:
        """Return one part of the payload. Raises: CorruptSpool, StorageError."""

    def records(self) -> Iterator[PublicationRecord]:
        """Yield all records. Raises: CorruptSpool, StorageError."""


@dataclass(frozen=True, slots=True)
class InMemory:
    """A link that is not on disk (yet)."""

    publication: Publication

    @property
    def opening(self) -> Opening:
        return self.publication.opening

    @property
    def closing(self) -> Closing:
        return self.publication.closing

    def part(self, index: int) -> bytes:
        return self.publication.chunks[index].data

    def records(self) -> Iterator[PublicationRecord]:
        return self.publication.records()


def attestation_of(link: ChainLink) -> Attestation:
    """Return the trainer's signed opening and closing of the state to which the link leads."""
    return link.opening.attested or Attestation(opening=link.opening, closing=link.closing)


def base_of(link: ChainLink) -> Policy:
    """Return the base of a delta."""
    assert link.opening.base is not None
    return link.opening.base


def publication_of(link: ChainLink) -> Publication:
    """Load the whole publication into memory. Raises: CorruptSpool, StorageError."""
    chunks = tuple(record for record in link.records() if isinstance(record, Chunk))
    return Publication(opening=link.opening, chunks=chunks, closing=link.closing)
