"""After a start: the log of publications as the disk has it. All of it is verified again."""

from periplus.publication import PublicationLog, Trust
from region_agent.weights.link import publication_of
from region_agent.weights.store import WeightStore

LOG_BYTES = 256 << 20
"""Publications of one job kept in memory for readers; what is older is on disk."""

MAX_CONTENT_BYTES = 1 << 46
"""Of one state: 64 TiB, a guard against nonsense; the trainer's signature is what is trusted."""


def restored_log(store: WeightStore, trust: Trust) -> PublicationLog:
    """Of an opened store. Raises: WireError, Fenced for a disk that was changed, StorageError."""
    publications = PublicationLog(trust, max_bytes=LOG_BYTES, max_content_bytes=MAX_CONTENT_BYTES)
    policy, digest = None, b""
    if store.copy is not None:
        policy, digest = store.copy.policy, store.copy.digest
    elif store.chain:
        policy, digest = store.chain[0].opening.base, store.chain[0].opening.base_digest
    bundle = None if store.bundle is None else publication_of(store.bundle)
    highest_fork = max(store.highest_fork, bundle.opening.policy.fork if bundle is not None else 0)
    is_dead = policy is not None and policy.fork < highest_fork  # the new fork's first state had not come
    chain = (publication_of(link) for link in ([] if is_dead else store.chain))
    publications.restore(bundle, chain, copy=policy, copy_digest=digest, highest_fork=highest_fork)
    return publications
