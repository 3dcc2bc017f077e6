"""What an audit compares, as values: each stands for bytes that somebody kept, and for nothing that a ledger counted.

`Witness` is a trajectory in a kept frame, reduced to what the journal says of it; its digest and its tokens' policies
are computed from the frame's bytes. `KeptCheckpoint` is a checkpoint's directory. The shell that reads them is read.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from periplus.audit.records import FrameId
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose, StopReason, Trajectory, content_digest

AUDIT_FILE = "audit.jsonl"


class Witness(NamedTuple):
    """One trajectory of a frame."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedManifest:
    """What a checkpoint's manifest says. `covers` and `prev`: its `audit.n` and `audit.prev`; `progress`: sums over the
    run, whatever JSON has under their names."""

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
    """`manifest`: None if it cannot be read, and `problem` says why; `bad_parts`: what is wrong with which part.

    `rounded`: digest of the weights in the part, rounded as they are published; None if that was not computed.
    """

    name: str
    digest: bytes
    manifest: AuditedManifest | None
    problem: str = ""
    bad_parts: Mapping[str, str] = field(default_factory=dict)
    rounded: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSpool:
    """What lies in a gateway's spool, of this job."""

    name: str
    witnesses: Sequence[Witness]
    damaged: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that one audit reads.

    `lines`: of the journal, with their newlines. `frames`: in the order of writing. `damaged`: place -> what is wrong;
    `store_damaged`: the store itself could not be read to its end.
    `steps`, `evals`: the policies that metrics.jsonl has steps and evaluations for; `newest_started`: the newest fork
    that it has anything of; `metrics_problem`: why it cannot be read. `settings`: of config.yaml, by the names of the
    `open` line; `config`: the file's BLAKE3, None if it is not there. `final`: the digest of the model in final/, None
    if there is none; `final_problem`: why it cannot be read.
    `authorities`: public keys of those whose certificates count. `pruned_before`, `num_later_lines`: from lines that
    were written while the rest was being read.
    """

    lines: Iterable[bytes]
    frames: Mapping[FrameId, tuple[Witness, ...]]
    damaged: Mapping[str, str] = field(default_factory=dict)
    store_damaged: bool = False
    checkpoints: Sequence[KeptCheckpoint] = ()
    steps: Sequence[Policy] = ()
    evals: Sequence[Policy] = ()
    newest_started: int = -1
    metrics_problem: str = ""
    config: bytes | None = None
    final: bytes | None = None
    final_problem: str = ""
    authorities: Sequence[bytes] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    spools: Sequence[KeptSpool] = ()
    pruned_before: FrameId | None = None
    num_later_lines: int = 0


def witness(t: Trajectory) -> Witness:
    """Reduce a trajectory. Its digest is computed here."""
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
    )
