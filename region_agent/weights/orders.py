"""Orders for derived publications: what exactly is derived for a reader, and from what.

A *derived publication* is a fold of the chain's deltas, or a full state, computed from the copy on disk. Readers with
equal requests share one, so each has a key: its route, the state from which a fold starts, and the version to which it
leads. The functions read the versions that are held, and change nothing.
"""

from dataclasses import dataclass

from periplus.publication import Attestation, PublicationKind
from periplus.values.policy import Policy
from region_agent.weights.chain import ChainLink, attestation_of
from region_agent.weights.held_versions import HeldVersions
from region_agent.weights.reader_routes import RouteKind


@dataclass(frozen=True, slots=True)
class DerivedKey:
    """What a derived publication is: its route, the state from which a fold starts, and the version it leads to."""

    kind: RouteKind
    have: Policy | None
    target: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedOrder:
    """One derived publication to be made. `number` names it; the other fields are for its opening."""

    number: int
    key: DerivedKey
    attestation: Attestation
    base_digest: bytes
    max_chunks: int

    @property
    def kind(self) -> PublicationKind:
        """Kind of the publication: an anchor for a full state, a delta for a fold."""
        return PublicationKind.ANCHOR if self.key.kind is RouteKind.FULL else PublicationKind.DELTA


def key_of(held: HeldVersions, kind: RouteKind, have: Policy | None) -> DerivedKey:
    """Return the key of what would be derived now for a reader that has `have`."""
    if kind is RouteKind.FULL:
        target = held.copy.policy if held.copy is not None else held.newest
        return DerivedKey(kind, None, target or Policy(0, 0))
    return DerivedKey(kind, have, held.newest or Policy(0, 0))


def order_of(held: HeldVersions, key: DerivedKey, number: int) -> DerivedOrder | None:
    """Return the order for a derived publication, or None if there is no copy to derive it from."""
    if held.copy is None:
        return None
    if key.kind is RouteKind.FULL:
        max_chunks = 1 + held.copy.num_spans
        return DerivedOrder(
            number=number, key=key, attestation=held.copy.attestation, base_digest=b"", max_chunks=max_chunks
        )
    links = held.links_from(key.have)
    if not links:
        return None
    # A fold has as many parts as each delta of the same layout: the head, and one for each span.
    return DerivedOrder(
        number=number,
        key=key,
        attestation=attestation_of(links[-1]),
        base_digest=links[0].opening.base_digest,
        max_chunks=links[-1].closing.num_chunks,
    )


def sources_of(held: HeldVersions, key: DerivedKey) -> tuple[ChainLink, ...] | str:
    """Return the links that are folded (none for a full state), or why this can no longer be derived."""
    copy = held.copy
    if copy is None or held.is_copy_unknown or (key.kind is RouteKind.FULL and copy.policy != key.target):
        return "the copy has moved on"
    if key.kind is RouteKind.FULL:
        return ()
    # Fold from the copy on, through the reader's state. A copy that has passed the reader's state no longer contains
    # it.
    links = tuple(link for link in held.chain if link.opening.policy <= key.target)
    if key.have is None or held.links_from(key.have) is None or not links or key.have < copy.policy:
        return "the chain has moved on"
    return links


def is_current(held: HeldVersions, key: DerivedKey) -> bool:
    """Return whether a reader that asked now would still be sent this."""
    return key == key_of(held, key.kind, key.have)
