"""What one gateway keeps of one job's signed publications, in memory: passed on as they come, to readers with cursors.

    cursor = log.open(have, has_bundle, distrust=...)
    loop: match log.next(cursor):
        Send(record, cursor)        write the record; go on with the new cursor
        Wait()                      wait until the log has changed
        Derive(have, chain_bytes)   a choice: `log.along(cursor)` sends what is signed, where chain_bytes says that it
                                    reaches; or stream one derived publication, and go on with `log.after(cursor, to)`
        NeedsAnchor()               the reader takes only what is signed, and memory has no way: find or ask for an
                                    anchor; wait until the log has changed

- Kept: the bundle; the *chain*, deltas each of which starts where the one before it ends, the last at `newest`; and the
  newest anchor that begins or lies on the chain. `drop_before` and `max_bytes` shorten the chain at its old end; over
  `max_bytes` the anchor goes first, since copies serve newcomers, but no anchor goes before the next version is here,
  and no newest delta. A newer anchor starts a new chain.
- A higher fork's opening fences all lower ones at once. Their states are not begun any more: who has the higher fork's
  bundle would refuse them.
- What is known already, also if it is kept no more: an identical delta or bundle is read, checked and dropped; an
  anchor of a known version with its known digest is taken, for who asked for one; all else is Fenced.
- A reader gets the bundle first, then states. It is never sent a state older than its own, and a delta only from
  exactly its own. One in the middle of what is dropped for room gets its end; memory lasts until then. One in the
  middle of what will not be completed, or is of a dead fork, goes on from what it had before.

What is derived never enters: it is proven by who applies it, and no relay can pass on what it cannot verify.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from periplus.errors import CorruptFrame, Fenced
from periplus.policy import Policy
from periplus.publication.order import Admission, Intake, admit, check_fork, check_repeat
from periplus.publication.signing import Trust
from periplus.publication.values import (
    Chunk,
    Closing,
    Opening,
    Publication,
    PublicationKind,
    PublicationRecord,
)

NUM_REMEMBERED = 1024
"""Versions whose digests are known after they have left the chain: some 300 KB."""

_Key = TypeVar("_Key")


@dataclass(slots=True, eq=False)
class _Entry:
    """A publication in the log. `void`: it will not be completed, or its fork is dead."""

    opening: Opening
    records: list[PublicationRecord] = field(default_factory=list)
    payload_bytes: int = 0
    void: bool = False

    @property
    def policy(self) -> Policy:
        return self.opening.policy


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a reader stands: what it has and will take, and how far it is in what it is getting."""

    have: Policy | None
    has_bundle: bool
    distrust: bool = False
    wants_anchor: bool = False
    is_along: bool = False
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
class Derive:
    """The reader is more than one version behind. `chain_bytes`: payload of the signed way; None if there is none."""

    have: Policy | None
    chain_bytes: int | None


@dataclass(frozen=True, slots=True)
class NeedsAnchor:
    """The reader takes only what is signed, and nothing here leads from what it has to the newest."""


Outcome = Send | Wait | Derive | NeedsAnchor


class PublicationLog:
    """One job's signed publications in one gateway; see the module's rules. `next` changes nothing."""

    def __init__(self, trust: Trust, *, max_bytes: int, max_content_bytes: int) -> None:
        self._intake = Intake(trust, max_content_bytes=max_content_bytes)
        self._max_bytes = max_bytes
        self._coming: _Entry | None = None
        self._bundle: _Entry | None = None
        self._anchor: _Entry | None = None
        self._chain: dict[Policy, _Entry] = {}  # by base, in order
        self._newest: Policy | None = None
        self._digests: dict[Policy, bytes] = {}  # of states that were here
        self._roots: dict[bytes, bytes] = {}  # of payloads that were here, by opening
        self._highest_fork = 0

    @property
    def newest(self) -> Policy | None:
        """The newest state that is here in full: a relay subscribes anew from here."""
        return self._newest

    @property
    def newest_digest(self) -> bytes:
        """Of `newest`; empty without one."""
        return b"" if self._newest is None else self._digests[self._newest]

    @property
    def highest_fork(self) -> int:
        """The highest whose publisher has shown itself; lower ones are Fenced."""
        return self._highest_fork

    @property
    def has_bundle(self) -> bool:
        return self._bundle is not None

    @property
    def kept_bytes(self) -> int:
        """Payload of chain and anchor."""
        return _total_bytes(self._chain.values()) + (self._anchor.payload_bytes if self._anchor else 0)

    # ---- what comes in --------------------------------------------------------------------------------------------

    def append(self, record: PublicationRecord) -> Publication | None:
        """One more record from the publisher; returns what it completes, but no repeat and nothing old.

        An anchor of exactly `newest` is returned again: a gateway's copy may be repaired from it.
        Raises: CorruptFrame, Forged, Fenced, WrongBase; then nothing has changed.
        """
        if isinstance(record, Opening):
            if record.is_derived:
                raise CorruptFrame(f"{record} is for the gateway that asked for it alone, not for its readers")
            self._intake.check_opening(record)
            admission = self._admit(record)
            self._intake.begin(record)
            self._begin(record, admission)
        elif isinstance(record, Chunk):
            self._intake.take(record)
        else:
            opening = self._intake.check_closing(record)
            self._check_known(opening, record)
            self._intake.end()
        if self._coming is not None:
            self._coming.records.append(record)
        return self._complete(opening, record) if isinstance(record, Closing) else None

    def restore(
        self, bundle: Publication | None, chain: Iterable[Publication], *, copy: Policy | None = None,
        copy_digest: bytes = b"", highest_fork: int = 0,
    ) -> None:  # fmt: skip
        """Begin with what the disk has: the copy's version, and complete publications. All are verified again.

        Raises: as `append`, for a disk that was changed; start with a new log then.
        """
        if copy is not None:
            self._newest = copy
            self._remember(copy, copy_digest)
        for publication in (*(() if bundle is None else (bundle,)), *chain):
            for record in publication.records():
                self.append(record)
        copy_fork = 0 if copy is None else copy.fork
        self._highest_fork = max(self._highest_fork, copy_fork, highest_fork)

    def rebase(self, policy: Policy, state_digest: bytes) -> None:
        """The gateway's copy has come to this version by a derived publication: the chain goes on from here.

        Raises: Fenced if another content is known for it, or its fork is dead.
        """
        if policy.fork < self._highest_fork:
            raise Fenced(f"{policy} is of an old fork, fork {self._highest_fork} has taken over; subscribe anew")
        if self._digests.get(policy, state_digest) != state_digest:
            raise Fenced(f"{policy} is known as {self._digests[policy].hex()}, not {state_digest.hex()}")
        if self._newest is not None and policy <= self._newest:
            return
        self._restart_chain(policy)
        self._newest, self._highest_fork = policy, policy.fork
        self._remember(policy, state_digest)
        coming = self._coming
        if coming is not None and (coming.opening.kind is PublicationKind.DELTA or coming.policy <= policy):
            coming.void, self._coming = True, None
            self._intake.end()

    def drop_before(self, policy: Policy) -> None:
        """A copy on disk is at `policy`: what only leads there or to before is not needed in memory."""
        self._chain = {base: entry for base, entry in self._chain.items() if entry.policy > policy}
        self._drop_stray_anchor()

    # ---- what goes out --------------------------------------------------------------------------------------------

    def open(
        self, have: Policy | None, has_bundle: bool, *, distrust: bool = False, wants_anchor: bool = False
    ) -> Cursor:
        """A cursor for a reader that has this. `distrust`: it takes only what is signed.

        `wants_anchor`: of a relay, which was asked for an anchor: one that is not older than `have` comes first.
        """
        return Cursor(have, has_bundle, distrust, wants_anchor)

    def along(self, cursor: Cursor) -> Cursor:
        """The cursor of a reader that is sent what is signed, up to the newest, rather than something derived."""
        return replace(cursor, is_along=True)

    def after(self, cursor: Cursor, policy: Policy) -> Cursor:
        """The cursor of a reader that was sent something else, which has brought it to `policy`."""
        return replace(cursor, have=policy, wants_anchor=False, is_along=False, entry=None, index=0)

    def next(self, cursor: Cursor) -> Outcome:
        """What the reader at this cursor gets next."""
        entry, index = cursor.entry, cursor.index
        if entry is None or entry.void:
            chosen = self._choose(cursor)
            if not isinstance(chosen, _Entry):
                return chosen
            entry, index = chosen, 0
        if index == len(entry.records):
            return Wait()
        record = entry.records[index]
        if not isinstance(record, Closing):
            return Send(record, replace(cursor, entry=entry, index=index + 1))
        if entry.opening.kind is PublicationKind.BUNDLE:
            return Send(record, replace(cursor, has_bundle=True, entry=None, index=0))
        is_relay_done = cursor.wants_anchor and entry.opening.kind is PublicationKind.ANCHOR
        return Send(
            record,
            replace(
                cursor, have=entry.policy, distrust=cursor.distrust and not is_relay_done,
                wants_anchor=cursor.wants_anchor and not is_relay_done,
                is_along=cursor.is_along and entry.policy != self._newest, entry=None, index=0,
            ),
        )  # fmt: skip

    def _choose(self, cursor: Cursor) -> "_Entry | Wait | Derive | NeedsAnchor":
        coming, newest, have = self._coming, self._newest, cursor.have
        if not cursor.has_bundle:
            is_bundle = coming is not None and coming.opening.kind is PublicationKind.BUNDLE
            return (coming if is_bundle else self._bundle) or Wait()
        if newest is None or newest.fork < self._highest_fork:
            return self._coming_anchor(have, newer=True) or Wait()
        if cursor.wants_anchor:
            is_fresh = self._anchor is not None and (have is None or have <= self._anchor.policy)
            return (self._anchor if is_fresh else self._coming_anchor(have)) or NeedsAnchor()
        if have is not None and have >= newest:
            continues = coming is not None and coming.opening.base == have
            return (coming if continues else self._coming_anchor(have, newer=True)) or Wait()
        way = self._signed_way(have)
        if cursor.distrust:
            return (way[0] if way else self._coming_anchor(have, newer=True)) or NeedsAnchor()
        if way and (cursor.is_along or (len(way) == 1 and way[0].opening.base == have)):
            return way[0]
        return Derive(have, _total_bytes(way) if way else None)

    def _coming_anchor(self, have: Policy | None, *, newer: bool = False) -> _Entry | None:
        coming = self._coming
        if coming is None or coming.opening.kind is not PublicationKind.ANCHOR:
            return None
        is_old = have is not None and (coming.policy < have or (newer and coming.policy == have))
        return None if is_old else coming

    def _signed_way(self, have: Policy | None) -> list[_Entry]:
        """What leads from `have` to the newest; nothing if nothing does."""
        way: list[_Entry] = []
        if have is None or have not in self._chain:
            if self._anchor is None or (have is not None and have >= self._anchor.policy):
                return []
            way, have = [self._anchor], self._anchor.policy
        while have in self._chain:
            way.append(self._chain[have])
            have = way[-1].policy
        return way

    # ---- what is kept ---------------------------------------------------------------------------------------------

    def _admit(self, opening: Opening) -> Admission:
        check_fork(opening, self._highest_fork)
        policy, kind = opening.policy, opening.kind
        if kind is PublicationKind.ANCHOR:
            if policy in self._digests:  # for who asked for one; its digest is compared at the closing
                return Admission.NEW
        elif opening.id in self._roots:
            return Admission.REPEAT
        elif kind is PublicationKind.BUNDLE and self._bundle is not None and policy <= self._bundle.policy:
            raise Fenced(f"{opening} would roll back the bundle of {self._bundle.policy}; stop publishing it")
        admission = admit(
            opening, newest=self._newest, newest_digest=self.newest_digest, highest_fork=self._highest_fork
        )
        if admission is Admission.REPEAT:
            raise Fenced(f"{opening} is not what was published as {policy} before; a version has one content")
        return admission

    def _check_known(self, opening: Opening, closing: Closing) -> None:
        if opening.kind is not PublicationKind.BUNDLE and opening.policy in self._digests:
            check_repeat(opening, closing, self._digests[opening.policy])
        if self._coming is None and self._roots.get(opening.id, closing.root) != closing.root:
            raise Fenced(f"{opening} comes again with another payload; a version has one content, stop publishing")

    def _begin(self, opening: Opening, admission: Admission) -> None:
        if self._coming is not None:
            self._coming.void = True
        self._highest_fork = opening.policy.fork
        self._coming = None if admission is Admission.REPEAT else _Entry(opening)

    def _complete(self, opening: Opening, closing: Closing) -> Publication | None:
        entry, self._coming = self._coming, None
        if entry is None:
            return None
        entry.payload_bytes = closing.payload_bytes
        if opening.kind is not PublicationKind.ANCHOR:
            _put(self._roots, opening.id, closing.root)
        if opening.kind is PublicationKind.BUNDLE:
            self._bundle = entry
        elif opening.kind is PublicationKind.DELTA:
            assert opening.base is not None
            self._chain[opening.base] = entry
        else:
            if self._newest is None or opening.policy > self._newest:
                self._restart_chain(opening.policy)
            if self._anchor is None or opening.policy >= self._anchor.policy:
                self._anchor = entry
        is_old = False
        if opening.kind is not PublicationKind.BUNDLE:
            is_old = self._newest is not None and opening.policy < self._newest
            self._newest = self._newest if is_old else opening.policy
            self._remember(opening.policy, closing.state_digest)
            self._trim(just_came=entry)
        chunks = tuple(record for record in entry.records if isinstance(record, Chunk))
        return None if is_old else Publication(opening=opening, chunks=chunks, closing=closing)

    def _restart_chain(self, policy: Policy) -> None:
        for entry in (self._anchor, *self._chain.values()):
            if entry is not None and entry.policy.fork < policy.fork:
                entry.void = True
        self._chain, self._anchor = {}, None

    def _trim(self, just_came: _Entry) -> None:
        self._drop_stray_anchor()
        if self.kept_bytes > self._max_bytes and self._anchor is not just_came:  # who asked for it has yet to look
            self._anchor = None
        while self.kept_bytes > self._max_bytes and len(self._chain) > 1:
            del self._chain[next(iter(self._chain))]

    def _drop_stray_anchor(self) -> None:
        if self._anchor is not None and self._anchor.policy != self._newest and self._anchor.policy not in self._chain:
            self._anchor = None

    def _remember(self, policy: Policy, state_digest: bytes) -> None:
        _put(self._digests, policy, state_digest)


def _total_bytes(entries: Iterable[_Entry]) -> int:
    return sum(entry.payload_bytes for entry in entries)


def _put(remembered: dict[_Key, bytes], key: _Key, value: bytes) -> None:
    remembered.pop(key, None)
    remembered[key] = value
    if len(remembered) > NUM_REMEMBERED:
        del remembered[next(iter(remembered))]
