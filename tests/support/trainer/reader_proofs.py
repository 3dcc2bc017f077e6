"""A reader's proof of a version, as it reaches the trainer."""

from dataclasses import replace
from typing import Any

from periplus.values.policy import Policy
from trainer.reporting.delivery import ReaderProof


def proof_of(policy: Policy, digest: bytes = b"", **changed: Any) -> ReaderProof:
    """Return the proof of a reader that took no time and checked no engine, with some fields changed."""
    right = ReaderProof(
        policy=policy,
        digest=digest,
        ok=True,
        why="",
        engine_checked=False,
        fallback=False,
        probe_mean_difference=0.0,
        probe_max_difference=0.0,
        transfer_s=0.0,
        apply_s=0.0,
        pause_s=0.0,
        generation_s=0.0,
    )
    return replace(right, **changed)
