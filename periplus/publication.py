"""Publications: how bundles and weights travel from the trainer through gateways to every reader, without I/O.

A publication is an opening (what it is, and caps on what it will need), its payload in equal chunks, and a closing
(what it must have been). `Assembler` is the receiving end. `PublicationLog` is what a gateway keeps: it passes records
on as they come, chunk by chunk, to any number of readers, each with a cursor of its own. The shell of a reader is

    cursor = log.open(have, has_bundle)
    loop: match log.next(cursor):
        Send(record, cursor)        write the record; go on with the new cursor
        Wait()                      wait until the log has changed
        Restart(has_bundle)         count it; go on with log.open(None, has_bundle)
        NeedsAnchor()               ask above for an anchor; wait until the log has changed

Rules, the same on every hop:
- Opening, chunks in order, closing. An opening is legal at any time: it drops an unfinished publication before it,
  whose publisher died or was fenced. Every other departure is CorruptFrame and changes nothing.
- Sizes come from the opening and are checked against the caps before anything is kept; memory grows with what arrived.
- A reader gets the bundle first, then states: the delta from exactly what it has; else, if it lags behind what is kept,
  the newest anchor (it restarts); else an anchor newer than what it has, while it comes. Others are skipped.
- A repeat is checked, and not kept. A delta must continue from `newest`. A fork lower than one seen is Fenced.
- Kept: the bundle, the newest anchor, and deltas up to `max_bytes`, oldest dropped first; also those before the anchor,
  since a reader that is one version late should not need a full state. An anchor whose deltas were dropped goes too:
  the publisher ignored `wants_anchor`. A higher fork's anchor drops all of lower forks at once. A reader in the middle
  of a publication that is dropped for room still gets its end, so that slow readers progress; memory lasts until then.

This module refuses to know what payloads mean: codecs decode them, and `state_digest` is proven by who applies them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from blake3 import blake3

from periplus.codec.frame import CodecId
from periplus.digest import DIGEST_BYTES, payload_digest
from periplus.errors import CorruptFrame, Fenced, WrongBase
from periplus.policy import Policy

MAX_CHUNKS = 1 << 20
"""256 GiB in chunks of 256 KiB; keeps the cost of tiny chunks within some 100 MB."""

_ANY_SIZE = (1 << 64) - 1

MAX_PAYLOAD_BYTES = 64 << 30
"""Default cap of a log, which never decodes: a full state of 32 billion bfloat16 parameters."""


class PublicationKind(StrEnum):
    """A bundle is what a worker needs beside weights; an anchor is a full state; a delta continues from its base."""

    BUNDLE = "bundle"
    ANCHOR = "anchor"
    DELTA = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What is about to come. `content_bytes`: after decoding, the cap of what a reader allocates."""

    job_id: str
    kind: PublicationKind
    policy: Policy
    base: Policy | None = None  # of a delta
    codec: CodecId
    payload_bytes: int
    num_chunks: int
    content_bytes: int

    @property
    def chunk_bytes(self) -> int:
        """Of every chunk but the last."""
        return -(-self.payload_bytes // self.num_chunks)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of the payload."""

    index: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What it must have been. `state_digest`: after applying; empty for a bundle."""

    payload_digest: bytes
    state_digest: bytes = b""


PublicationRecord = Opening | Chunk | Closing


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """All of it, in one place."""

    opening: Opening
    payload: bytes
    closing: Closing


def publication(
    *,
    job_id: str,
    kind: PublicationKind,
    policy: Policy,
    base: Policy | None = None,
    codec: CodecId,
    payload: bytes,
    content_bytes: int,
    state_digest: bytes = b"",
) -> Publication:
    """A publication with its sizes and digest filled in, in one chunk until it is split."""
    opening = Opening(
        job_id=job_id,
        kind=kind,
        policy=policy,
        base=base,
        codec=codec,
        payload_bytes=len(payload),
        num_chunks=1,
        content_bytes=content_bytes,
    )
    closing = Closing(payload_digest=payload_digest(payload), state_digest=state_digest)
    return Publication(opening=opening, payload=payload, closing=closing)


def split(publication_: Publication, chunk_bytes: int) -> Iterator[PublicationRecord]:
    """The records of a publication, in order, with equal chunks of at most `chunk_bytes`."""
    payload = publication_.payload
    opening = replace(publication_.opening, num_chunks=max(1, -(-len(payload) // chunk_bytes)))
    yield opening
    for index in range(opening.num_chunks):
        start = index * opening.chunk_bytes
        yield Chunk(index, payload[start : start + opening.chunk_bytes])
    yield publication_.closing


def check_opening(opening: Opening, *, max_payload_bytes: int, max_content_bytes: int) -> None:
    """Everything about an opening that needs no history. Raises: CorruptFrame."""
    o, is_delta = opening, opening.kind is PublicationKind.DELTA
    _check(0 < o.payload_bytes <= max_payload_bytes, f"payload_bytes (1 to {max_payload_bytes})", o.payload_bytes, o)
    _check(0 < o.num_chunks <= min(MAX_CHUNKS, o.payload_bytes), "num_chunks", o.num_chunks, o)
    _check((o.num_chunks - 1) * o.chunk_bytes < o.payload_bytes, "num_chunks (chunks are equal)", o.num_chunks, o)
    _check(0 <= o.content_bytes <= max_content_bytes, f"content_bytes (0 to {max_content_bytes})", o.content_bytes, o)
    _check(is_delta == (o.base is not None), "base (a delta has one, nothing else does)", o.base, o)
    _check(o.base is None or o.base < o.policy, "base (older than the policy)", o.base, o)


class Assembler:
    """Records in, publications out. After an error the stream is of no use: end it, subscribe anew."""

    def __init__(self, *, max_payload_bytes: int, max_content_bytes: int) -> None:
        self._intake = _Intake(max_payload_bytes, max_content_bytes)
        self._chunks: list[bytes] = []

    def feed(self, record: PublicationRecord) -> Publication | None:
        """The publication that this record completes. Raises: CorruptFrame, and then nothing has changed."""
        completed = self._intake.take(record)
        if isinstance(record, Opening):
            self._chunks = []
        elif isinstance(record, Chunk):
            self._chunks.append(record.data)
        elif completed is not None:
            payload, self._chunks = b"".join(self._chunks), []
            return Publication(opening=completed, payload=payload, closing=record)
        return None


@dataclass(slots=True, eq=False)
class _Entry:
    """A publication in the log. `void`: it will not be completed, or its fork is dead."""

    opening: Opening
    records: list[PublicationRecord] = field(default_factory=list)
    void: bool = False


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a reader stands: what it has, and how far it is in what it is getting."""

    have: Policy | None
    has_bundle: bool
    entry: _Entry | None = None
    index: int = 0


@dataclass(frozen=True, slots=True)
class Send:
    """The reader's next record, and the cursor after it."""

    record: PublicationRecord
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Wait:
    """The reader has all that there is for it."""


@dataclass(frozen=True, slots=True)
class Restart:
    """What the reader has leads nowhere any more; the newest anchor does: open a cursor without a state."""

    has_bundle: bool


@dataclass(frozen=True, slots=True)
class NeedsAnchor:
    """The log has newer states, but no way from what the reader has to them."""


Outcome = Send | Wait | Restart | NeedsAnchor


class PublicationLog:
    """One job's publications in one gateway; see the module's rules. `next` changes nothing."""

    def __init__(self, *, max_bytes: int, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._intake = _Intake(max_payload_bytes, max_content_bytes=_ANY_SIZE)
        self._coming: _Entry | None = None
        self._bundle: _Entry | None = None
        self._anchor: _Entry | None = None
        self._deltas: dict[Policy, _Entry] = {}  # by base
        self._fork = 0
        self._newest: Policy | None = None

    @property
    def newest(self) -> Policy | None:
        """The state that was published last and in full: a relay subscribes anew from here."""
        return self._newest

    @property
    def has_bundle(self) -> bool:
        return self._bundle is not None

    @property
    def wants_anchor(self) -> bool:
        """Whether the publisher should send a full state before deltas are dropped: at half of `max_bytes`."""
        if self._newest is None or (self._coming and self._coming.opening.kind is PublicationKind.ANCHOR):
            return False
        if self._anchor is None:
            return True
        anchored = self._anchor.opening.policy
        since_bytes = sum(d.opening.payload_bytes for d in self._deltas.values() if d.opening.policy > anchored)
        return 2 * since_bytes > self._max_bytes

    def append(self, record: PublicationRecord) -> None:
        """One more record from the publisher. Raises: CorruptFrame, Fenced, WrongBase; then nothing has changed."""
        if isinstance(record, Opening):
            self._admit(record)
        completed = self._intake.take(record)
        if isinstance(record, Opening):
            self._begin(record)
        if self._coming is not None:
            self._coming.records.append(record)
        if completed is not None:
            self._complete(completed)

    def open(self, have: Policy | None, has_bundle: bool) -> Cursor:
        """A cursor for a reader that has this."""
        return Cursor(have, has_bundle)

    def next(self, cursor: Cursor) -> Outcome:
        """What the reader at this cursor gets next."""
        entry, index = cursor.entry, cursor.index
        if entry is None or entry.void:
            chosen = self._choose(cursor.have, cursor.has_bundle)
            if not isinstance(chosen, _Entry):
                return chosen
            entry, index = chosen, 0
        if index == len(entry.records):
            return Wait()
        record = entry.records[index]
        if not isinstance(record, Closing):
            return Send(record, replace(cursor, entry=entry, index=index + 1))
        if entry.opening.kind is PublicationKind.BUNDLE:
            return Send(record, Cursor(cursor.have, True))
        return Send(record, Cursor(entry.opening.policy, cursor.has_bundle))

    def _choose(self, have: Policy | None, has_bundle: bool) -> "_Entry | Wait | Restart | NeedsAnchor":
        coming = self._coming
        if not has_bundle:
            if coming is not None and coming.opening.kind is PublicationKind.BUNDLE:
                return coming
            return self._bundle or Wait()
        if have is not None and have in self._deltas:
            return self._deltas[have]
        if self._anchor is not None and (have is None or have < self._anchor.opening.policy):
            return self._anchor if have is None else Restart(has_bundle)
        if coming is not None and _continues(coming.opening, have):
            return coming
        if self._newest is None or (have is not None and have >= self._newest):
            return Wait()
        return NeedsAnchor()

    def _admit(self, opening: Opening) -> None:
        if opening.policy.fork < self._fork:
            raise Fenced(
                f"{opening.kind} {opening.policy} is of an old fork, this log follows {self._fork}; stop publishing"
            )
        follows = opening.kind is not PublicationKind.DELTA or self._newest in (None, opening.base)
        if not follows and not self._is_repeat(opening):
            raise WrongBase(
                f"delta {opening.policy} is from {opening.base}, the log is at {self._newest}; publish an anchor"
            )

    def _is_repeat(self, opening: Opening) -> bool:
        if opening.kind is PublicationKind.DELTA:
            assert opening.base is not None
            held = self._deltas.get(opening.base)
            return held is not None and held.opening.policy == opening.policy
        held = self._bundle if opening.kind is PublicationKind.BUNDLE else self._anchor
        return held is not None and opening.policy <= held.opening.policy

    def _begin(self, opening: Opening) -> None:
        if self._coming is not None:
            self._coming.void = True
        self._fork = opening.policy.fork
        self._coming = None if self._is_repeat(opening) else _Entry(opening)

    def _complete(self, opening: Opening) -> None:
        entry, self._coming = self._coming, None
        if opening.kind is PublicationKind.BUNDLE:
            self._bundle = entry or self._bundle
            return
        self._newest = opening.policy
        if entry is None:
            return
        if opening.kind is PublicationKind.ANCHOR:
            self._drop_lower_forks(opening.policy.fork)
            self._anchor = entry
        else:
            assert opening.base is not None
            self._deltas[opening.base] = entry
        self._trim()

    def _drop_lower_forks(self, fork: int) -> None:
        for entry in [self._anchor, *self._deltas.values()]:
            if entry is not None and entry.opening.policy.fork < fork:
                entry.void = True
        self._deltas = {base: entry for base, entry in self._deltas.items() if not entry.void}

    def _trim(self) -> None:
        kept_bytes = sum(entry.opening.payload_bytes for entry in self._deltas.values())
        while kept_bytes > self._max_bytes and len(self._deltas) > 1:
            dropped = self._deltas.pop(min(self._deltas)).opening
            kept_bytes -= dropped.payload_bytes
            if self._anchor is not None and dropped.policy > self._anchor.opening.policy:
                self._anchor = None


class _Intake:
    """The order and sizes of one stream of records. Raises: CorruptFrame, and then nothing has changed."""

    def __init__(self, max_payload_bytes: int, max_content_bytes: int) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._max_content_bytes = max_content_bytes
        self._opening: Opening | None = None
        self._num_taken = 0
        self._hasher = blake3()

    def take(self, record: PublicationRecord) -> Opening | None:
        """The opening of the publication that this record completes."""
        if isinstance(record, Opening):
            check_opening(record, max_payload_bytes=self._max_payload_bytes, max_content_bytes=self._max_content_bytes)
            self._opening, self._num_taken, self._hasher = record, 0, blake3()
            return None
        opening = self._opening
        if opening is None:
            raise CorruptFrame(f"a {type(record).__name__.lower()} came before its opening; subscribe anew")
        if isinstance(record, Chunk):
            self._take_chunk(opening, record)
            return None
        is_bundle = opening.kind is PublicationKind.BUNDLE
        _check(self._num_taken == opening.num_chunks, "closing after so many chunks", self._num_taken, opening)
        _check(self._hasher.digest() == record.payload_digest, "payload digest", record.payload_digest.hex(), opening)
        num_digest_bytes = 0 if is_bundle else DIGEST_BYTES
        _check(len(record.state_digest) == num_digest_bytes, "state digest", record.state_digest.hex(), opening)
        self._opening = None
        return opening

    def _take_chunk(self, opening: Opening, chunk: Chunk) -> None:
        start = self._num_taken * opening.chunk_bytes
        expected_bytes = min(opening.chunk_bytes, opening.payload_bytes - start)
        in_order = chunk.index == self._num_taken < opening.num_chunks
        _check(in_order, f"chunk index (expected {self._num_taken} of {opening.num_chunks})", chunk.index, opening)
        _check(len(chunk.data) == expected_bytes, f"chunk length (expected {expected_bytes})", len(chunk.data), opening)
        self._hasher.update(chunk.data)
        self._num_taken += 1


def _continues(coming: Opening, have: Policy | None) -> bool:
    if coming.kind is PublicationKind.DELTA:
        return have is not None and coming.base == have
    return coming.kind is PublicationKind.ANCHOR and (have is None or have < coming.policy)


def _check(ok: bool, what: str, value: object, opening: Opening) -> None:
    if not ok:
        about = f"{opening.kind} {opening.policy} of job {opening.job_id[:80]!r}"
        raise CorruptFrame(f"bad {what}: {value} ({about}); subscribe anew")
