"""The versions of a job that one gateway holds: an immutable value, and questions that it answers.

A gateway holds one full state on disk (the *copy*), the *chain* of deltas after it, and the job's bundle. A full state
that the trainer published (an *anchor*) replaces the copy once it is on disk; until then it is held in memory. Links of
the chain and the bundle are in memory until they are on disk, too.

Invariants: the copy is proven by its signed digest, unless `is_copy_unknown`. The chain's first link starts at the
anchor that is not on disk yet, else at the copy, and without either anywhere. Each later link starts where the one
before it ends. `held_transitions` keeps these invariants; nothing here changes anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from periplus.publication import Attestation
from periplus.values.policy import Policy
from region_agent.weights.chain import ChainLink, InMemory, base_of

MOST_CHAINS = 4
"""Multiple of the usual chain length that is kept while a reader still receives the copy, or while the disk is full.
Chosen by hand."""

_NO_COPY_BYTES = 1 << 62
"""Size of a copy that is not there: without one, only the number of links limits the chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFacts:
    """What is known of the proven full state on disk.

    `content_bytes` is the size of its tensors, and `num_spans` the number of spans in which it is encoded.
    """

    attestation: Attestation
    content_bytes: int
    num_spans: int

    @property
    def policy(self) -> Policy:
        """Version of the copy."""
        return self.attestation.opening.policy

    @property
    def digest(self) -> bytes:
        """State digest that the trainer signed."""
        return self.attestation.closing.state_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVersions:
    """What a gateway holds of one job.

    `is_copy_unknown`: an error left the copy half written, and it must be recovered before it is used. `anchor`: a full
    state that is not on disk yet. `highest_fork` was seen, `saved_fork` is on disk.
    """

    copy: CopyFacts | None = None
    is_copy_unknown: bool = False
    anchor: InMemory | None = None
    chain: tuple[ChainLink, ...] = ()
    bundle: ChainLink | None = None
    highest_fork: int = 0
    saved_fork: int = 0

    @property
    def newest(self) -> Policy | None:
        """Version to which copy and chain lead, or None."""
        last = self.chain[-1] if self.chain else self.anchor
        return last.opening.policy if last is not None else self.copy.policy if self.copy is not None else None

    @property
    def reaches(self) -> bool:
        """Whether the copy and the chain after it lead to the newest state."""
        starts = self.chain[0].opening.base if self.chain else None
        return self.copy is not None and not self.is_waiting and starts in (None, self.copy.policy)

    @property
    def has_state(self) -> bool:
        """Whether there is a copy, or will be one once the disk takes it."""
        return self.copy is not None or self.is_waiting

    @property
    def is_waiting(self) -> bool:
        """Whether a copy is to be created or recovered."""
        return self.anchor is not None or self.is_copy_unknown

    @property
    def chain_bytes(self) -> tuple[int, ...]:
        """Payload bytes of each link of the chain."""
        return tuple(link.closing.payload_bytes for link in self.chain)

    def links_from(self, have: Policy | None) -> tuple[ChainLink, ...] | None:
        """Return the chain's links that lead from `have` to the newest state, or None if they do not."""
        if have is not None and have == self.newest:
            return ()
        starts = [index for index, link in enumerate(self.chain) if link.opening.base == have]
        return self.chain[starts[0] :] if starts else None

    def holds(self, link: ChainLink) -> bool:
        """Return whether this very link is in the chain."""
        return any(each is link for each in self.chain)

    def is_long(self, num_chains: int, chain_versions: int) -> bool:
        """Return whether the chain exceeds `num_chains` times its usual links, or the bytes of that many copies."""
        copy_bytes = self.copy.content_bytes if self.copy is not None else _NO_COPY_BYTES
        return bool(self.chain) and (
            len(self.chain) > num_chains * chain_versions or sum(self.chain_bytes) > num_chains * copy_bytes
        )


def chain_of(links: Sequence[ChainLink], copy: CopyFacts | None) -> tuple[ChainLink, ...]:
    """Return the chain that stored links form: from the copy on, or the one that ends at the newest link without one.

    Links are joined by version and digest, so a link of other content is never in the chain.
    """
    if copy is not None:
        # Forward from the copy, from each link to the one whose base it leads to.
        chain, at = [], (copy.policy, copy.digest)
        by_base = {(base_of(link), link.opening.base_digest): link for link in links}
        while (following := by_base.get(at)) is not None:
            chain.append(following)
            at = (following.opening.policy, following.closing.state_digest)
        return tuple(chain)
    # Backward from the newest link, from each link to the one that ends at its base.
    chain, by_end = [], {(link.opening.policy, link.closing.state_digest): link for link in links}
    last = max(links, key=lambda link: link.opening.policy, default=None)
    while last is not None:
        chain.append(last)
        last = by_end.get((base_of(last), last.opening.base_digest))
    return tuple(reversed(chain))
