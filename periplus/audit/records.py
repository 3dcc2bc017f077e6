"""Line format of the audit journal `audit.jsonl`: this module defines the schemas periplus.audit/1 and /2.

A line is one JSON object without spaces. Its keys come in this order: `n` (the line's number from 0), `prev` (hex of
the 16-byte BLAKE3 of the line before, without its newline; zeros before the first line), `t` (seconds since 1970, 6
decimals), `kind`, and the kind's own keys in the order of `_TABLES`. Digests are hex, a policy is `[fork, version]`,
a place in the trainer's store of frames is `[epoch, sequence]`, and a run of a result's tokens by one policy is `[fork,
version, tokens]`, with a fourth number 1 if the engine kept the key-value cache of older policies (`kept_kv`).

    open        A trainer starts a new fork. `resumed_at` is the first line that the checkpoint it starts from does not
                cover (that manifest's `audit.n`), and `manifest` is the hash of that manifest. Both are null at a fresh
                start, and when the parent's history is in another file.
                `problems` is the digest of the problems that are trained on and held out, and `other_problems` says
                that they are not the parent's, which the resumption allowed.
    lease       A worker got the right to produce one sample. A second lease of a sample whose first one is still out
                has `hedges`, the number of the first; other lines do not have this key.
    result      A sample came back, and this is the verdict. `frame` is the place of its bytes, or null if they were not
                kept (which never holds for an accepted sample); `index` is its place in that frame.
    lost        A lease ended without a result.
    drop        A group was given up, with the accepted samples that it had.
    doubt       Samples of a worker were found not to be of the weights that it named. Those that began with the policy
                `since`, or a newer one, are in doubt. The batch of the step from `policy` is the first that leaves
                them out; earlier ones were trained on them.
    eval_begin  An evaluation begins for which training does not wait. Its `eval` line comes later, if the trainer
                lives, and has `newest`, the newest policy that sampled a token of it.
    eval        Samples were used for an evaluation. They are never trained on.
    consume     A batch left the ledger, and the version rose by one. `trained` says whether the optimizer stepped. The
                digests are computed from the optimizer's input; `root` is their `batch_root`; `staleness` counts tokens
                by age in versions.
    publish     A version's weights were published. `digest` is the published state's (periplus/values/digest.py).
    checkpoint  A manifest was renamed into place. `manifest` is the BLAKE3 of the file's bytes, and `covers` the first
                line that it does not cover. The manifest itself holds `audit: {n, prev}` of that line.
    prune       Frames before `kept_from` may be deleted, because the checkpoint of `policy` made them unneeded.
    seal        (schema 2) The trainer signs this line's `n` and `prev`, and so every line before it (seals.py). `key`
                is its public key, `certificate` the job authority's signature of (job, fork, key).
    export      `final/` has the weights of `policy` with adapters merged into their layers; `digest` is theirs.
    end         The trainer stopped on purpose; `how` is succeeded, stopped or failed. A killed trainer writes no such
                line.

A lease is identified by (lease, group, sample). Each fork numbers its leases from 1 without gaps. Evaluation groups are
numbered from the start in each fork; training groups have one numbering across all forks. After a restore the
results in the kept frames get a verdict and a line again, before the fork's first lease. An abandoned lease has a
`lost` line after its result. Labels (`why`) are lower-case words.

Unknown kinds and keys are refused, so that no reader skips what it does not understand. A line has one valid form:
whatever `to_line` would not write is refused too (a repeated key, other spaces, another escape). In schema 2 a
certified trainer writes a seal in one piece with each line of eval, consume, publish, checkpoint, prune, export and
end.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from blake3 import blake3

from periplus.audit.checked_values import (
    checked_boolean,
    checked_integer,
    checked_label,
    checked_number,
    checked_text,
    integer_up_to,
)
from periplus.audit.line_values import (
    ages_of,
    ages_text,
    digest16,
    digest32,
    digest_text,
    integer_text,
    list_of,
    optional_of,
    pair_of,
    policy_run,
    policy_text,
    runs_text,
    signature64,
)
from periplus.errors import CorruptFrame
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose, StopReason

SCHEMA = "periplus.audit/2"
"""Schema that this build writes and reads."""

CHAIN_BYTES = 16
"""Bytes of a line's hash in the chain: a BLAKE3 digest cut to 128 bits."""
START_OF_CHAIN = bytes(CHAIN_BYTES)
"""The `prev` of the first line: zeros."""
START_OF_BATCHES = bytes(CHAIN_BYTES)
"""Running root over the batches of a run before its first batch (see `next_batches_root`): zeros."""

ENDINGS = ("succeeded", "stopped", "failed")
"""Values of `how` in an `end` line."""

MAX_GROUP_SIZE = 1 << 16
"""Most samples in a group that a line may name. A job file allows 1,024; the margin was chosen by hand."""
MAX_GROUPS_PER_STEP = 1 << 20
"""Most groups in a step that a line may name. A job file allows 65,536; the margin was chosen by hand."""

MAX_LINE_BYTES = 64 << 20
"""Longest line that is read, newline included. The longest that a trainer writes is the `consume` line of the largest
step that a job file allows, and it is shorter than this."""


class AdmissionVerdict(StrEnum):
    """The trainer's decision on a result that came back."""

    ACCEPTED = "accepted"
    ABANDONED = "abandoned"  # the worker gave up before the end; the sample is counted and never trained on
    DUPLICATE = "duplicate"
    REFUSED = "refused"


class FrameId(NamedTuple):
    """Position of a frame in the trainer's store of trajectories. Positions rise in the order of writing."""

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sequence}"


class UsedSample(NamedTuple):
    """A sample that was trained on, or used for an evaluation."""

    group: int
    sample: int
    digest: bytes  # periplus.values.trajectory.content_digest


class DroppedSample(NamedTuple):
    """An accepted sample of a group that was given up."""

    sample: int
    digest: bytes
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEntry:
    """A trainer started a new fork; `bound` is the job's staleness bound in versions, `settings` hashes config.yaml."""

    job_id: str
    fork: int
    parent: Policy | None
    manifest: bytes | None  # 32 bytes
    resumed_at: int | None
    bound: int
    group_size: int
    groups_per_step: int
    seed: int
    algorithm: str
    settings: bytes  # 32 bytes
    problems: bytes  # 32 bytes
    other_problems: bool = False
    schema: str = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEntry:
    """A worker got the right to produce one sample of the problem `item`, from the policy `start_at` on.

    `hedges` is the number of the lease of the same sample that is still out, if this is a second one beside it, else 0.
    """

    lease_id: int
    group: int
    sample: int
    item: int
    purpose: Purpose
    worker_id: str
    region: str
    start_at: Policy
    consume_by_version: int
    hedges: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultEntry:
    """A sample came back. `why` is empty if it was accepted or abandoned; `num_tokens` counts its completion."""

    verdict: AdmissionVerdict
    why: str
    lease_id: int
    group: int
    sample: int
    worker_id: str
    region: str
    digest: bytes
    num_tokens: int
    policies: tuple[PolicyRun, ...]
    stop_reason: StopReason
    frame: FrameId | None
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEntry:
    """A lease ended without a result, for the reason `why`."""

    lease_id: int
    group: int
    sample: int
    worker_id: str
    why: str


UNSOUND = "unsound_samples"
"""Why a group was left out of a batch or an evaluation: samples in it were not of the weights that their worker named,
or had wrong rewards. The problem of an evaluation was asked for again, in a new group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropEntry:
    """A group was given up for the reason `why`; `samples` are the accepted ones that it had."""

    group: int
    why: str
    samples: tuple[DroppedSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtEntry:
    """What a worker sampled from the policy `since` on is in doubt for the reason `why`, a sentence.

    The batch of the step that starts from `policy` is the first that leaves such samples out.
    """

    worker_id: str
    since: Policy
    policy: Policy
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalBeginEntry:
    """An evaluation of `policy` and those that follow it began, while training goes on."""

    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalEntry:
    """Samples were used to evaluate `policy`.

    `newest` is None if the trainer waited for the samples, all of which `policy` sampled. Otherwise training went on:
    their tokens are of policies from `policy` to `newest`.
    """

    policy: Policy
    samples: tuple[UsedSample, ...]
    newest: Policy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeEntry:
    """A batch left the ledger for one step.

    `policy` is the one that the step started from, and `why` is empty if the optimizer stepped. `samples` are in the
    order of training, and `staleness_tokens` maps an age in versions to a count of tokens.
    """

    policy: Policy
    trained: bool
    why: str
    samples: tuple[UsedSample, ...]
    root: bytes
    staleness_tokens: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishEntry:
    """The weights of `policy` were published; `digest` is that of the published state."""

    policy: Policy
    digest: bytes  # 32 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """A checkpoint of `policy` is complete; `manifest` hashes its manifest, which covers the lines before `covers`."""

    policy: Policy
    manifest: bytes  # 32 bytes
    covers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneEntry:
    """Frames before `kept_from` may be deleted, because the checkpoint of `policy` does not need them."""

    kept_from: FrameId
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportEntry:
    """The weights of `policy` were exported with adapters merged into their layers; `digest` is that of the result."""

    policy: Policy
    digest: bytes  # 32 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEntry:
    """The trainer stopped on purpose; `how` is one of `ENDINGS`."""

    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SealEntry:
    """The trainer's signature of every line before this one (seals.py)."""

    key: bytes  # 32 bytes
    certificate: bytes  # 64 bytes
    signature: bytes  # 64 bytes


Entry = (
    OpenEntry
    | LeaseEntry
    | ResultEntry
    | LostEntry
    | DropEntry
    | DoubtEntry
    | EvalBeginEntry
    | EvalEntry
    | ConsumeEntry
    | PublishEntry
    | CheckpointEntry
    | PruneEntry
    | ExportEntry
    | EndEntry
    | SealEntry
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """A parsed line: an entry, with its number, the hash of the line before it, and its time."""

    n: int
    prev: bytes
    time_s: float
    record: Entry


def to_line(n: int, prev: bytes, time_s: float, record: Entry) -> bytes:
    """Return the bytes of a line, without its newline. `time_s` counts seconds since 1970."""
    kind, fields = _TABLES[type(record)]
    if isinstance(record, EvalEntry) and record.newest is not None:
        fields = _EVAL_SPAN
    elif isinstance(record, LeaseEntry) and record.hedges:
        fields = _LEASE_HEDGE
    body = "".join([f',"{f.key}":{f.to_text(getattr(record, f.attribute))}' for f in fields])
    return f'{{"n":{n},"prev":"{prev.hex()}","t":{time_s:.6f},"kind":"{kind}"{body}}}'.encode()


def kind_of(entry: Entry) -> str:
    """Return the kind of an entry as its line has it, such as `lease`."""
    return _TABLES[type(entry)][0]


def from_line(line: bytes, where: str) -> JournalLine:
    """Parse a line without its newline: the inverse of `to_line`.

    Raises: CorruptFrame, with a message that begins with `where`, such as `audit.jsonl:7`.
    """
    try:
        data = json.loads(line)
        # The kind decides which keys there must be.
        record_type, fields = _KINDS[checked_label(data["kind"])]
        if record_type is EvalEntry and "newest" in data:
            fields = _EVAL_SPAN
        elif record_type is LeaseEntry and "hedges" in data:
            fields = _LEASE_HEDGE
        values = {f.attribute: f.of_json(data[f.key]) for f in fields}
        # All expected keys are there (a missing one is a KeyError), so that a different number means unknown ones.
        if len(data) != len(fields) + len(_HEAD):
            odd = sorted(data.keys() - {f.key for f in fields} - set(_HEAD))
            raise ValueError(f"keys {odd!r:.60} are unknown to {SCHEMA}")
        found = JournalLine(
            n=checked_integer(data["n"]),
            prev=digest16(data["prev"]),
            time_s=checked_number(data["t"]),
            record=record_type(**values),
        )
        # Two spellings of one line would have two hashes. Only the writer's own is accepted.
        is_as_written = _rendered(data, fields) == line
    except KeyError as error:
        raise CorruptFrame(f"{where}: no key or kind {error} in {SCHEMA}: {line[:80]!r}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFrame(f"{where}: {str(error)[:200]}: {line[:80]!r}") from error
    if not is_as_written:
        message = "it is not in the one form that a writer gives it (a key twice, or other spaces, order or escapes)"
        raise CorruptFrame(f"{where}: {message}: {line[:80]!r}")
    return found


def _rendered(data: dict[str, Any], fields: Sequence["_Field"]) -> bytes:
    """Return the bytes that `to_line` would write for a line's values, which were checked before.

    It takes half the time of `to_line`, because JSON's own encoder writes the values. The order of the keys is compared
    here; hex and ages have only one form, which their own checks ensure.
    """
    if list(data) != [*_HEAD, *[f.key for f in fields]]:
        return b""
    body = _ENCODE({f.key: data[f.key] for f in fields})
    head = f'{{"n":{data["n"]},"prev":"{data["prev"]}","t":{data["t"]:.6f},"kind":"{data["kind"]}",'
    return head.encode() + body[1:].encode()


def chain_hash(line: bytes) -> bytes:
    """Return the hash of a line (without its newline), which the next line repeats as `prev`."""
    return blake3(line).digest(length=CHAIN_BYTES)


def batch_root(digests: Sequence[bytes]) -> bytes:
    """Return the `root` of a consume line: the hash of its samples' digests, concatenated in their order."""
    return blake3(b"".join(digests)).digest(length=CHAIN_BYTES)


def next_batches_root(root: bytes, batch: bytes) -> bytes:
    """Return the running root over a lineage's batches (a manifest's `batches_root`) after one more batch root."""
    return blake3(root + batch).digest(length=CHAIN_BYTES)


# ---- fields ----------------------------------------------------------------------------------------------------------


class _Field(NamedTuple):
    key: str
    attribute: str
    to_text: Callable[[Any], str]
    of_json: Callable[[Any], Any]


_HEAD = ("n", "prev", "t", "kind")
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def _ending(value: Any) -> str:
    if value not in ENDINGS:
        raise ValueError(f"one of {', '.join(ENDINGS)} expected, not {value!r:.60}")
    return str(value)


def _schema(value: Any) -> str:
    if value != SCHEMA:
        raise ValueError(f"schema {value!r:.60} is not {SCHEMA}; read it with the version that wrote it")
    return str(value)


def _frame_id(value: Any) -> FrameId:
    return FrameId(*pair_of(value))


def _used(value: Any) -> UsedSample:
    group, sample, digest = value
    return UsedSample(checked_integer(group), checked_integer(sample), digest16(digest))


def _dropped(value: Any) -> DroppedSample:
    sample, digest, num_tokens = value
    return DroppedSample(checked_integer(sample), digest16(digest), checked_integer(num_tokens))


def _frame_text(value: FrameId | None) -> str:
    return "null" if value is None else f"[{value.epoch},{value.sequence}]"


def _used_text(value: Sequence[UsedSample]) -> str:
    return "[" + ",".join([f'[{group},{sample},"{digest.hex()}"]' for group, sample, digest in value]) + "]"


def _dropped_text(value: Sequence[DroppedSample]) -> str:
    return "[" + ",".join([f'[{sample},"{digest.hex()}",{tokens}]' for sample, digest, tokens in value]) + "]"


def _int(key: str, attribute: str = "") -> _Field:
    return _Field(key, attribute or key, str, checked_integer)


def _str(key: str, attribute: str = "", of_json: Callable[[Any], Any] = checked_text) -> _Field:
    return _Field(key, attribute or key, encode_basestring_ascii, of_json)


def _hex(key: str, of_json: Callable[[Any], Any]) -> _Field:
    return _Field(key, key, digest_text, of_json)


def _bool(key: str) -> _Field:
    return _Field(key, key, lambda value: "true" if value else "false", checked_boolean)


def _pol(key: str) -> _Field:
    return _Field(key, key, policy_text, lambda value: Policy(*pair_of(value)))


_WHY = _str("why", of_json=checked_label)
_LEASE, _GROUP, _SAMPLE = _int("lease", "lease_id"), _int("group"), _int("sample")
_WORKER, _REGION = _str("worker", "worker_id"), _str("region")
_USED = _Field("samples", "samples", _used_text, list_of(_used))

_TABLES: dict[type[Any], tuple[str, tuple[_Field, ...]]] = {
    OpenEntry: (
        "open",
        (
            _str("schema", of_json=_schema),
            _str("job_id"),
            _int("fork"),
            _Field("parent", "parent", policy_text, optional_of(lambda value: Policy(*pair_of(value)))),
            _Field("manifest", "manifest", digest_text, optional_of(digest32)),
            _Field("resumed_at", "resumed_at", integer_text, optional_of(checked_integer)),
            _int("bound"),
            _Field("group_size", "group_size", str, integer_up_to(MAX_GROUP_SIZE)),
            _Field("groups_per_step", "groups_per_step", str, integer_up_to(MAX_GROUPS_PER_STEP)),
            _int("seed"),
            _str("algorithm"),
            _Field("settings", "settings", digest_text, digest32),
            _hex("problems", digest32),
            _bool("other_problems"),
        ),
    ),
    LeaseEntry: (
        "lease",
        (
            _LEASE,
            _GROUP,
            _SAMPLE,
            _int("item"),
            _str("purpose", of_json=Purpose),
            _WORKER,
            _REGION,
            _pol("start_at"),
            _int("consume_by", "consume_by_version"),
        ),
    ),
    ResultEntry: (
        "result",
        (
            _str("verdict", of_json=AdmissionVerdict),
            _WHY,
            _LEASE,
            _GROUP,
            _SAMPLE,
            _WORKER,
            _REGION,
            _Field("digest", "digest", digest_text, digest16),
            _int("tokens", "num_tokens"),
            _Field("policies", "policies", runs_text, list_of(policy_run)),
            _str("stop", "stop_reason", StopReason),
            _Field("frame", "frame", _frame_text, optional_of(_frame_id)),
            _int("index"),
        ),
    ),
    LostEntry: ("lost", (_LEASE, _GROUP, _SAMPLE, _WORKER, _WHY)),
    DropEntry: ("drop", (_GROUP, _WHY, _Field("samples", "samples", _dropped_text, list_of(_dropped)))),
    DoubtEntry: ("doubt", (_WORKER, _pol("since"), _pol("policy"), _str("why"))),
    EvalBeginEntry: ("eval_begin", (_pol("policy"),)),
    EvalEntry: ("eval", (_pol("policy"), _USED)),
    ConsumeEntry: (
        "consume",
        (
            _pol("policy"),
            _bool("trained"),
            _WHY,
            _USED,
            _Field("root", "root", digest_text, digest16),
            _Field("staleness", "staleness_tokens", ages_text, ages_of),
        ),
    ),
    PublishEntry: ("publish", (_pol("policy"), _hex("digest", digest32))),
    CheckpointEntry: (
        "checkpoint",
        (_pol("policy"), _hex("manifest", digest32), _int("covers")),
    ),
    PruneEntry: ("prune", (_Field("kept_from", "kept_from", _frame_text, _frame_id), _pol("policy"))),
    ExportEntry: ("export", (_pol("policy"), _hex("digest", digest32))),
    EndEntry: ("end", (_str("how", of_json=_ending),)),
    SealEntry: ("seal", (_hex("key", digest32), _hex("certificate", signature64), _hex("signature", signature64))),
}
_EVAL_SPAN = (_pol("policy"), _pol("newest"), _USED)
_LEASE_HEDGE = (*_TABLES[LeaseEntry][1], _Field("hedges", "hedges", str, integer_up_to((1 << 64) - 1)))
_KINDS = {kind: (record_type, fields) for record_type, (kind, fields) in _TABLES.items()}
