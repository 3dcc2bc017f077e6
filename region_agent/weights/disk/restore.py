"""Restores the log of publications from the disk after a start. Everything is verified again."""

from periplus.publication import PublicationLog, Trust
from region_agent.weights.chain import MAX_RELAYED_BYTES, publication_of
from region_agent.weights.held_versions import HeldVersions

LOG_BYTES = 256 << 20
"""Bytes of one job's publications that are kept in memory for readers; older ones are on disk. Chosen by hand."""


def restored_log(held: HeldVersions, trust: Trust, fork: int) -> PublicationLog:
    """Return the log of what was found on disk, for the workers of a fork.

    The bundle of an earlier fork is left out: a run that is resumed with other data has another one, and a worker with
    the earlier one would get no leases. Raises: WireError, Fenced for a disk that was changed, StorageError.
    """
    publications = PublicationLog(trust, max_bytes=LOG_BYTES, max_content_bytes=MAX_RELAYED_BYTES)
    # The log begins at the copy, or without one at the base of the first delta.
    policy, digest = None, b""
    if held.copy is not None:
        policy, digest = held.copy.policy, held.copy.digest
    elif held.chain:
        policy, digest = held.chain[0].opening.base, held.chain[0].opening.base_digest
    bundle = None if held.bundle is None else publication_of(held.bundle)
    # A fork begins with its bundle, so the bundle may be of a newer fork than the state.
    highest_fork = max(held.highest_fork, bundle.opening.policy.fork if bundle is not None else 0)
    is_dead = policy is not None and policy.fork < highest_fork  # the new fork's first state had not arrived
    chain = (publication_of(link) for link in (() if is_dead else held.chain))
    if bundle is not None and bundle.opening.policy.fork < fork:
        bundle = None
    publications.restore(bundle, chain, copy=policy, copy_digest=digest, highest_fork=highest_fork)
    return publications
