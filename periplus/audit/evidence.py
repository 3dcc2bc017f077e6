"""Evidence of an audit, as plain values. Each stands for bytes in a file, and none for a count that a ledger kept.

A `Witness` is a trajectory in a kept frame, reduced to the fields that the journal repeats; its digest is computed from
the frame's bytes. A `KeptCheckpoint` is a checkpoint's directory, a `KeptSpool` a gateway's spool. run_reader.py makes
them from files.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from periplus.audit.records import FrameId
from periplus.values.policy import Policy
from periplus.values.record import Record
from periplus.values.trajectory import PolicyRun, Purpose, StopReason, Trajectory, content_digest

AUDIT_FILE = "audit.jsonl"
"""Name of the journal in a run directory, as findings name it."""


class Witness(NamedTuple):
    """A trajectory in a kept frame, reduced to the fields that the journal repeats and to what it is worth.

    `is_right` is None if it was not sampled for an evaluation, or if the job does not say which answers are right.
    """

    digest: bytes
    lease_id: int
    group: int
    sample: int
    item: int
    purpose: Purpose
    worker_id: str
    policies: tuple[PolicyRun, ...]
    num_tokens: int
    stop_reason: StopReason
    reward: float | None
    is_right: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedManifest:
    """Fields of a checkpoint's manifest that an audit recomputes.

    `covers` and `prev` are its `audit.n` and `audit.prev`. `progress` maps the names of sums over the run to JSON
    values that were not checked.
    """

    job_id: str
    policy: Policy
    covers: int
    prev: bytes
    weights: bytes
    parent: Policy | None
    parent_manifest: bytes | None
    next_group: int
    open_groups: frozenset[int]
    batches_root: bytes
    parents: tuple[Policy, ...]
    progress: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoint:
    """A checkpoint's directory. `digest` hashes the manifest's file.

    `manifest` is None if it cannot be parsed, and `problem` says why. `bad_parts` maps a part's name to what is wrong
    with it. `rounded` is the digest of the weights rounded as they are published, or None if it could not be computed.
    `files` maps the model's other files to the digests that they have in final/.
    """

    name: str
    digest: bytes
    manifest: AuditedManifest | None
    problem: str = ""
    bad_parts: Mapping[str, str] = field(default_factory=dict)
    rounded: bytes | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSpool:
    """The trajectories in a gateway's spool, those of other jobs included, if somebody has put some there.

    `damaged` maps the place of an unreadable frame to what is wrong with it.
    """

    name: str
    witnesses: Sequence[Witness]
    damaged: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that one audit reads.

    - `lines` are the journal's, with their newlines.
    - `frames` maps a frame's position to its trajectories, in the order of writing; an unreadable frame has none.
      `damaged` maps its place to what is wrong. With `store_damaged` the store could not be read to its end.
    - `records` are the steps and evaluations in metrics.jsonl, with the values that are compared. `newest_started` is
      the newest fork in it, or -1. `metrics_problem` says why it cannot be read; `records` is then None.
    - `settings` are those of config.yaml, by the names of an `open` line. `config` is the BLAKE3 of the file, or None
      if it does not exist. `knows_right` says whether it tells which answers are right, and is None if it is no job.
    - `final` is the digest of the model in final/, or None without one. `final_problem` says why it cannot be read.
      `final_files` maps its files without weights to their digests.
    - `authorities` are the public keys whose certificates count.
    - `pruned_before` and `num_later_lines` are from lines that were written while the rest was being read.
    """

    lines: Iterable[bytes]
    frames: Mapping[FrameId, tuple[Witness, ...]]
    damaged: Mapping[str, str] = field(default_factory=dict)
    store_damaged: bool = False
    checkpoints: Sequence[KeptCheckpoint] = ()
    records: Sequence[Record] | None = None
    newest_started: int = -1
    metrics_problem: str = ""
    config: bytes | None = None
    knows_right: bool | None = None
    final: bytes | None = None
    final_problem: str = ""
    final_files: Mapping[str, bytes] = field(default_factory=dict)
    authorities: Sequence[bytes] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    spools: Sequence[KeptSpool] = ()
    pruned_before: FrameId | None = None
    num_later_lines: int = 0


def witness(t: Trajectory, is_right: Callable[[Trajectory], bool | None]) -> Witness:
    """Reduce a trajectory to a witness, and compute the digest of its content.

    `is_right` tells whether a sample of an evaluation is right.
    """
    return Witness(
        digest=content_digest(t),
        lease_id=t.lease_id,
        group=t.group,
        sample=t.sample,
        item=t.item,
        purpose=t.purpose,
        worker_id=t.worker_id,
        policies=t.policies,
        num_tokens=len(t.completion_ids),
        stop_reason=t.stop_reason,
        reward=t.reward,
        is_right=is_right(t) if t.purpose is Purpose.EVAL else None,
    )
