"""One job's signed publications in the memory of one gateway, passed on as they come, with a cursor for each reader.

    cursor = log.open(have, has_bundle, distrust=...)
    loop: match log.next(cursor):
        Send(record, cursor)        send the record; go on with the new cursor
        Wait()                      wait until the log has changed
        Derive(have, chain_bytes)   the caller chooses: `log.along(cursor)` sends the signed publications if chain_bytes
                                    says that they reach the newest state; or the caller streams one derived publication
                                    and goes on with `log.after(cursor, to)`
       NeedsAnchor()               the reader takes only signed publications, and none in memory lead to the newest
                                    state: find or request an anchor; wait until the log has changed

- What is kept: the bundle; the *chain* of deltas, each of which starts where the one before it ends and the last of
  which leads to `newest`; and the newest anchor that is at the start of the chain or on it. `drop_before` and
  `max_bytes` shorten the chain at its old end. Beyond `max_bytes` the anchor is dropped first, because newcomers can be
  served from copies on disk. But no anchor is dropped before the next version is here, and the newest delta never is. A
  newer anchor starts a new chain.
- The opening of a higher fork fences all lower forks at once. Their states are no longer started for readers, because a
  reader that has the higher fork's bundle would refuse them.
- Repeats, even of publications that are no longer kept: an identical delta or bundle is read, checked and dropped. An
  anchor of a known version with its known digest is taken, for whoever requested it. Everything else at or below
  `newest` is Fenced.
- A reader gets the bundle first, then states. It is never sent a state older than its own, and a delta only from
  exactly its own state. A reader in the middle of a publication that is dropped for room still gets its end; its memory
  is held until then. A reader in the middle of one that will not be completed, or whose fork is fenced, goes on from
  what it had before.

Derived publications never enter the log: only the reader that applies one can prove it, and a relay must not pass on
what it cannot verify. The log is synchronous and does no I/O.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from periplus.errors import CorruptFrame, Fenced
from periplus.publication.order import Admission, StreamChecker, admit, check_fork, check_repeat
from periplus.publication.signing import Trust
from periplus.publication.values import (
    Chunk,
    Closing,
    Opening,
    Publication,
    PublicationKind,
    PublicationRecord,
)
from periplus.values.policy import Policy

NUM_REMEMBERED = 1024
"""Versions whose digests are remembered after they have left the chain; about 300 KB. Chosen by hand."""

_Key = TypeVar("_Key")


@dataclass(slots=True, eq=False)
class _Entry:
    """A publication in the log. `void` says that it will not be completed or that its fork is fenced."""

    opening: Opening
    records: list[PublicationRecord] = field(default_factory=list)
    payload_bytes: int = 0
    void: bool = False

    @property
    def policy(self) -> Policy:
        return self.opening.policy


@dataclass(frozen=True, slots=True)
class Cursor:
    """A reader's position: what it has and will take, and how far it is in the publication that it is being sent.

    `is_along`: the caller has chosen to send signed publications up to the newest. `entry`, `index`: the next record.
    """

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
    """The reader has everything that there is for it now."""


@dataclass(frozen=True, slots=True)
class Derive:
    """The reader is more than one version behind, or no delta leads on from its state.

    `chain_bytes` is the payload of the signed publications that lead to the newest state; None if none do.
    """

    have: Policy | None
    chain_bytes: int | None


@dataclass(frozen=True, slots=True)
class NeedsAnchor:
    """The reader takes only signed publications, and none here lead from its state to the newest."""


Outcome = Send | Wait | Derive | NeedsAnchor


class PublicationLog:
    """One job's signed publications in one gateway; the module's docstring states the rules. `next` changes nothing."""

    def __init__(self, trust: Trust, *, max_bytes: int, max_content_bytes: int) -> None:
        self._intake = StreamChecker(trust, max_content_bytes=max_content_bytes)
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
        """The newest state that is here in full. A relay that lost its connection subscribes again from here."""
        return self._newest

    @property
    def newest_digest(self) -> bytes:
        """State digest of `newest`; empty without one."""
        return b"" if self._newest is None else self._digests[self._newest]

    @property
    def highest_fork(self) -> int:
        """Highest fork of which an opening was seen; lower ones are Fenced."""
        return self._highest_fork

    @property
    def has_bundle(self) -> bool:
        return self._bundle is not None

    @property
    def kept_bytes(self) -> int:
        """Payload bytes of the chain and the anchor."""
        return _total_bytes(self._chain.values()) + (self._anchor.payload_bytes if self._anchor else 0)

    # ---- what comes in --------------------------------------------------------------------------------------------

    def append(self, record: PublicationRecord) -> Publication | None:
        """Take the next record of the publisher, and return the publication that it completes.

        Returns None for a repeat and for anything older than `newest`. An anchor of exactly `newest` is returned again,
        because a gateway's copy may be repaired from it.

        Raises: CorruptFrame, Forged, Fenced, WrongBase; then nothing has changed.
        """
        # All checks come before the first change, so that a refused record leaves the log as it was.
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
        # A repeat is read and checked like anything else, but no entry is made for it, and so nothing is kept.
        if self._coming is not None:
            self._coming.records.append(record)
        return self._complete(opening, record) if isinstance(record, Closing) else None

    def restore(
        self,
        bundle: Publication | None,
        chain: Iterable[Publication],
        *,
        copy: Policy | None = None,
        copy_digest: bytes = b"",
        highest_fork: int = 0,
    ) -> None:
        """Start with what the disk has: the version of the copy, and complete publications. All are verified again.

        Raises: as `append`, for a disk that was changed; then start with a new log.
        """
        # The copy's version comes first, because it decides whether a delta from the disk continues anything.
        if copy is not None:
            self._newest = copy
            self._remember(copy, copy_digest)
        for publication in (*(() if bundle is None else (bundle,)), *chain):
            for record in publication.records():
                self.append(record)
        # Forks that were fenced before the restart stay fenced, even if nothing of the highest one was kept.
        copy_fork = 0 if copy is None else copy.fork
        self._highest_fork = max(self._highest_fork, copy_fork, highest_fork)

    def rebase(self, policy: Policy, state_digest: bytes) -> None:
        """Continue the chain from a version that the gateway's copy reached by a derived publication.

        Does nothing if the log is at that version or beyond. Raises: Fenced if another content is known for the
        version, or its fork is fenced.
        """
        if policy.fork < self._highest_fork:
            raise Fenced(f"{policy} is of an old fork, fork {self._highest_fork} has taken over; subscribe again")
        if self._digests.get(policy, state_digest) != state_digest:
            raise Fenced(f"{policy} is known as {self._digests[policy].hex()}, not {state_digest.hex()}")
        if self._newest is not None and policy <= self._newest:
            return
        self._restart_chain(policy)
        self._newest, self._highest_fork = policy, policy.fork
        self._remember(policy, state_digest)
        # What is arriving is of no use if it starts from another state than this, or leads no further.
        coming = self._coming
        if coming is not None and (coming.opening.kind is PublicationKind.DELTA or coming.policy <= policy):
            coming.void, self._coming = True, None
            self._intake.end()

    def drop_before(self, policy: Policy) -> None:
        """Drop the deltas that lead only to `policy` or to older states, because a copy on disk is at `policy`."""
        self._chain = {base: entry for base, entry in self._chain.items() if entry.policy > policy}
        self._drop_stray_anchor()

    # ---- what goes out --------------------------------------------------------------------------------------------

    def open(
        self, have: Policy | None, has_bundle: bool, *, distrust: bool = False, wants_anchor: bool = False
    ) -> Cursor:
        """Return a cursor for a reader that has this state and bundle.

        With `distrust` it takes only signed publications.

        `wants_anchor` is set by a relay that was asked for an anchor: one that is not older than `have` then comes
        first.
        """
        return Cursor(have, has_bundle, distrust, wants_anchor)

    def along(self, cursor: Cursor) -> Cursor:
        """Return the cursor of a reader that is sent signed publications up to the newest, not a derived one."""
        return replace(cursor, is_along=True)

    def after(self, cursor: Cursor, policy: Policy) -> Cursor:
        """Return the cursor of a reader that was sent something else, which has brought it to `policy`."""
        return replace(cursor, have=policy, wants_anchor=False, is_along=False, entry=None, index=0)

    def next(self, cursor: Cursor) -> Outcome:
        """Return what the reader at this cursor gets next."""
        entry, index = cursor.entry, cursor.index
        # The reader is between publications, or its own was given up: choose anew from what it has.
        if entry is None or entry.void:
            chosen = self._choose(cursor)
            if not isinstance(chosen, _Entry):
                return chosen
            entry, index = chosen, 0
        # It has all records that arrived so far of a publication that still comes in.
        if index == len(entry.records):
            return Wait()
        record = entry.records[index]
        if not isinstance(record, Closing):
            return Send(record, replace(cursor, entry=entry, index=index + 1))
        if entry.opening.kind is PublicationKind.BUNDLE:
            return Send(record, replace(cursor, has_bundle=True, entry=None, index=0))
        # A relay's wish for an anchor, and its distrust with it, ends with the anchor.
        is_relay_done = cursor.wants_anchor and entry.opening.kind is PublicationKind.ANCHOR
        return Send(
            record,
            replace(
                cursor,
                have=entry.policy,
                distrust=cursor.distrust and not is_relay_done,
                wants_anchor=cursor.wants_anchor and not is_relay_done,
                is_along=cursor.is_along and entry.policy != self._newest,
                entry=None,
                index=0,
            ),
        )

    def _choose(self, cursor: Cursor) -> "_Entry | Wait | Derive | NeedsAnchor":
        """Return the publication that the reader gets next, or why it gets none."""
        coming, newest, have = self._coming, self._newest, cursor.have
        if not cursor.has_bundle:
            is_bundle = coming is not None and coming.opening.kind is PublicationKind.BUNDLE
            return (coming if is_bundle else self._bundle) or Wait()
        # The highest fork has no complete state yet: only its coming anchor may be started.
        if newest is None or newest.fork < self._highest_fork:
            return self._coming_anchor(have, newer=True) or Wait()
        # A relay asks for an anchor: the kept one if it is not older than the reader's state, else the coming one.
        if cursor.wants_anchor:
            is_fresh = self._anchor is not None and (have is None or have <= self._anchor.policy)
            return (self._anchor if is_fresh else self._coming_anchor(have)) or NeedsAnchor()
        # The reader is up to date: a coming publication that continues from its state is passed on while it arrives.
        if have is not None and have >= newest:
            continues = coming is not None and coming.opening.base == have
            return (coming if continues else self._coming_anchor(have, newer=True)) or Wait()
        # The reader is behind. A single delta from its state is always sent. Otherwise the caller decides, unless it
        # has decided already.
        path = self._signed_path(have)
        if cursor.distrust:
            return (path[0] if path else self._coming_anchor(have, newer=True)) or NeedsAnchor()
        if path and (cursor.is_along or (len(path) == 1 and path[0].opening.base == have)):
            return path[0]
        return Derive(have, _total_bytes(path) if path else None)

    def _coming_anchor(self, have: Policy | None, *, newer: bool = False) -> _Entry | None:
        """Return the arriving anchor if it is not older than `have` (with `newer`: if it is newer), else None."""
        coming = self._coming
        if coming is None or coming.opening.kind is not PublicationKind.ANCHOR:
            return None
        is_old = have is not None and (coming.policy < have or (newer and coming.policy == have))
        return None if is_old else coming

    def _signed_path(self, have: Policy | None) -> list[_Entry]:
        """Return the signed publications that lead from `have` to the newest state; an empty list if none do."""
        path: list[_Entry] = []
        # No delta starts from the reader's state: the path can only begin with an anchor that is newer.
        if have is None or have not in self._chain:
            if self._anchor is None or (have is not None and have >= self._anchor.policy):
                return []
            path, have = [self._anchor], self._anchor.policy
        while have in self._chain:
            path.append(self._chain[have])
            have = path[-1].policy
        return path

    # ---- what is kept ---------------------------------------------------------------------------------------------

    def _admit(self, opening: Opening) -> Admission:
        """Decide whether an opening starts something new or repeats what is known. Raises: Fenced, WrongBase."""
        check_fork(opening, self._highest_fork)
        policy, kind = opening.policy, opening.kind
        if kind is PublicationKind.ANCHOR:
            if policy in self._digests:  # somebody requested it; its digest is compared at the closing
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
        """Check that a known version comes again with its known digest and payload. Raises: Fenced."""
        if opening.kind is not PublicationKind.BUNDLE and opening.policy in self._digests:
            check_repeat(opening, closing, self._digests[opening.policy])
        if self._coming is None and self._roots.get(opening.id, closing.root) != closing.root:
            raise Fenced(f"{opening} comes again with another payload; a version has one content, stop publishing")

    def _begin(self, opening: Opening, admission: Admission) -> None:
        # The publisher began anew: readers of the unfinished publication choose again.
        if self._coming is not None:
            self._coming.void = True
        self._highest_fork = opening.policy.fork
        self._coming = None if admission is Admission.REPEAT else _Entry(opening)

    def _complete(self, opening: Opening, closing: Closing) -> Publication | None:
        entry, self._coming = self._coming, None
        if entry is None:
            return None
        entry.payload_bytes = closing.payload_bytes
        # Anchors are compared by state digest alone: one state may be encoded into several payloads.
        if opening.kind is not PublicationKind.ANCHOR:
            _put(self._roots, opening.id, closing.root)
        if opening.kind is PublicationKind.BUNDLE:
            self._bundle = entry
        elif opening.kind is PublicationKind.DELTA:
            assert opening.base is not None
            self._chain[opening.base] = entry
        else:
            # A newer anchor starts a new chain; one on the chain or at its start only serves newcomers.
            if self._newest is None or opening.policy > self._newest:
                self._restart_chain(opening.policy)
            if self._anchor is None or opening.policy >= self._anchor.policy:
                self._anchor = entry
        # An old anchor was requested by a reader, and does not move the log back.
        is_old = False
        if opening.kind is not PublicationKind.BUNDLE:
            is_old = self._newest is not None and opening.policy < self._newest
            self._newest = self._newest if is_old else opening.policy
            self._remember(opening.policy, closing.state_digest)
            # Remembered anew with each version: a trainer repeats its bundle when it connects again, however late.
            if self._bundle is not None and self._bundle.opening.id in self._roots:
                _put(self._roots, self._bundle.opening.id, self._roots[self._bundle.opening.id])
            self._trim(just_came=entry)
        chunks = tuple(record for record in entry.records if isinstance(record, Chunk))
        return None if is_old else Publication(opening=opening, chunks=chunks, closing=closing)

    def _restart_chain(self, policy: Policy) -> None:
        """Start an empty chain at `policy`. Entries of lower forks become void."""
        # Readers in the middle of an entry of the same fork may finish it; those of a fenced fork may not.
        for entry in (self._anchor, *self._chain.values()):
            if entry is not None and entry.policy.fork < policy.fork:
                entry.void = True
        self._chain, self._anchor = {}, None

    def _trim(self, just_came: _Entry) -> None:
        self._drop_stray_anchor()
        if self.kept_bytes > self._max_bytes and self._anchor is not just_came:  # its requester has yet to read it
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
    # Insert at the end, so that the first key is always the one that was not used for longest.
    remembered.pop(key, None)
    remembered[key] = value
    if len(remembered) > NUM_REMEMBERED:
        del remembered[next(iter(remembered))]
