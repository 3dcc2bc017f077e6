"""Store of one job's publications in one gateway's folder: a full state, the chain of deltas after it, the bundle.

    <number>.bundle, <number>.delta    complete publications (stored_publication.py)
    copy-<number>.*                    the copy: a full state (full_state.py)
    <number>.derived                   derived publications for readers, until the next start (derived.py)
    fork-<number>                      the highest fork seen: an empty file
    lock

`put` takes a publication into memory and cannot fail. `settle` writes what is in memory to disk and advances the copy
while the chain is too long; it may be called again after an error. So a full disk harms neither readers nor the copy,
until the chain is `MOST_CHAINS` times too long; then the copy is given up.

Invariants: the copy is proven by its signed digest. The chain's first link starts at the copy (or at an anchor that is
not on disk yet; without either, anywhere), and each later one where the one before it ends. Bounds on disk: one copy
(two while an anchor replaces one), a redo log, a chain of `MOST_CHAINS * chain_versions` links or that many times the
copy's bytes, and a bundle. The store is not thread-safe: it has one caller at a time.
"""

import contextlib
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from periplus.errors import CorruptFrame, CorruptSpool, StorageError, WireError, WrongBase
from periplus.publication import Assembler, Publication, PublicationKind, Trust
from periplus.spool.files import explained
from periplus.values.policy import Policy
from region_agent.weights.chain import MAX_RELAYED_BYTES, ChainLink, InMemory, OnDisk, attestation_of, base_of
from region_agent.weights.changes import anchor_changes, delta_changes, head_of
from region_agent.weights.disk import full_state as copy_
from region_agent.weights.disk.files import OsWeightFiles, WeightFiles
from region_agent.weights.disk.full_state import FullState
from region_agent.weights.disk.stored_publication import find, keep

MOST_CHAINS = 4
"""Multiple of the usual chain length that is kept while a reader still receives the copy, or while the disk is full.
Chosen by hand."""

_NAME = re.compile(r"(\d{10})\.(bundle|delta|derived)")
"""Names of files with a publication: number and kind."""
_FORK = re.compile(r"fork-(\d{10})")
"""Name of the empty file that records the highest fork seen."""


class WeightStore:
    """One job's folder, open for one process.

    `copy` is the proven full state, `chain` the deltas after it, `bundle` the job's bundle; each is None or empty if
    absent. `refused` says why a copy was given up, until the caller has logged it.
    """

    def __init__(self, folder: Path, trust: Trust, layer: WeightFiles, chain_versions: int, held: ExitStack) -> None:
        self.folder = folder
        self.layer = layer
        self.copy: FullState | None = None
        self.bundle: ChainLink | None = None
        self.chain: list[ChainLink] = []
        self.highest_fork = 0
        self.refused = ""  # why a copy was given up, until the event is logged
        self._trust = trust
        self._chain_versions = chain_versions
        self._anchor: ChainLink | None = None  # not on disk yet
        self._forks: set[int] = set()  # on disk
        self._next = 0
        self._held = held
        self._must_recover = False

    @classmethod
    def open(cls, folder: Path, trust: Trust, *, chain_versions: int, layer: WeightFiles | None = None) -> Self:
        """Open the folder with what an earlier process left, proven.

        It reads all of it. Raises: Conflict, StorageError.
        """
        layer = layer or OsWeightFiles()
        with ExitStack() as held:
            with explained(folder):
                layer.make_folder(folder)
                held.enter_context(layer.lock(folder / "lock"))
            store = cls(folder, trust, layer, chain_versions, held)
            store._recover()
            store._held = held.pop_all()
            return store

    @property
    def newest(self) -> Policy | None:
        """Version to which copy and chain lead, or None."""
        last = self.chain[-1] if self.chain else self._anchor
        return last.opening.policy if last is not None else self.copy.policy if self.copy is not None else None

    @property
    def newest_digest(self) -> bytes:
        """Signed state digest of `newest`; empty without one."""
        last = self.chain[-1] if self.chain else self._anchor
        return last.closing.state_digest if last is not None else self.copy.digest if self.copy is not None else b""

    @property
    def reaches(self) -> bool:
        """Whether the copy and the chain after it lead to the newest state."""
        starts = self.chain[0].opening.base if self.chain else None
        is_settled = self._anchor is None and not self._must_recover
        return self.copy is not None and is_settled and starts in (None, self.copy.policy)

    @property
    def has_state(self) -> bool:
        """Whether there is a copy, or will be one once the disk takes it."""
        return self.copy is not None or self._anchor is not None or self._must_recover

    @property
    def is_waiting(self) -> bool:
        """Whether `settle` would create or recover a copy."""
        return self._anchor is not None or self._must_recover

    @property
    def chain_bytes(self) -> tuple[int, ...]:
        """Payload bytes of each link of the chain."""
        return tuple(link.closing.payload_bytes for link in self.chain)

    def links_from(self, have: Policy | None) -> list[ChainLink] | None:
        """Return the chain's links that lead from `have` to the newest state, or None if they do not."""
        if have is not None and have == self.newest:
            return []
        starts = [index for index, link in enumerate(self.chain) if link.opening.base == have]
        return self.chain[starts[0] :] if starts else None

    # ---- taking ---------------------------------------------------------------------------------------------------

    def put(self, publication: Publication) -> None:
        """Take a complete, admitted publication into memory."""
        link = InMemory(publication)
        match publication.opening.kind:
            case PublicationKind.BUNDLE:
                self._forget(self.bundle)
                self.bundle = link
            case PublicationKind.ANCHOR if publication.opening.policy != self.newest or not self.reaches:
                self._drop_chain()
                self._anchor = link
            case PublicationKind.DELTA if publication.opening.base == self.newest:
                self.chain.append(link)
            case PublicationKind.DELTA if self.newest is None or publication.opening.policy > self.newest:
                self._drop_chain()  # the delta continues from a state that never arrived here
                self._give_up(f"{publication.opening} continues from a version that is not here")
                self.chain.append(link)
            case _:
                pass  # the store has this version already

    def see_fork(self, fork: int) -> None:
        """Note a fork. The next `settle` makes the highest one durable."""
        self.highest_fork = max(self.highest_fork, fork)

    def settle(self, *, hold: bool = False) -> None:
        """Write what is in memory to disk, and advance the copy unless `hold`. Raises: StorageError, DiskFull."""
        # Forks first: after a crash, no older fork may be accepted again.
        self._note_fork()
        if self._must_recover:
            self._recover_copy()
        if self.bundle is not None and isinstance(self.bundle, InMemory):
            self.bundle = self._save(self.bundle, "bundle")
        try:
            if self._anchor is not None:
                self._create(self._anchor)
            for index, link in enumerate(self.chain):
                if isinstance(link, InMemory):
                    self.chain[index] = self._save(link, "delta")
            # Apply the oldest links until the chain has its usual length; `hold` postpones that up to a limit.
            while self._is_long(1) and not (hold and not self._is_long(MOST_CHAINS)):
                self._advance()
        except StorageError:
            # The disk has refused for too long: give up the copy, so that the chain stays bounded.
            if self._is_long(MOST_CHAINS):
                self._give_up("the disk did not let it advance for too long")
                self._anchor = None
                while self._is_long(1):
                    self._forget(self.chain.pop(0))
            raise

    def become(self, publication: Publication) -> None:
        """Bring the copy at once to the state of a publication that a gateway derived.

        Raises: CorruptFrame if it does not lead to the signed state, WrongBase if it continues from a state that is not
        here, StorageError.
        """
        link = InMemory(publication)
        if publication.opening.kind is PublicationKind.ANCHOR:
            # Replace the copy, and keep the part of the chain that continues from the new one.
            self._create(link)
            after = self.links_from(publication.opening.policy)
            if after:
                while self.chain[0] is not after[0]:
                    self._forget(self.chain.pop(0))
                return
        else:
            if not self.reaches or self.newest != publication.opening.base:
                raise WrongBase(
                    f"{publication.opening} starts from {publication.opening.base}, "
                    f"but the newest version here is {self.newest}"
                )
            # A fold continues from the newest state: bring the copy there first.
            while self.chain:
                self._advance()
            self._apply(link)
        self._drop_chain()

    def doubt(self) -> None:
        """Prove the copy once more, and give it up if it is not what was signed. Raises: StorageError."""
        if self.copy is not None and (why := self.copy.differs()):
            self._give_up(why)

    def abandon(self, why: str) -> None:
        """Drop copy and chain, because what is here cannot be used."""
        self._drop_chain()
        self._anchor = None
        self._give_up(why)

    def close(self, *, remove: bool = False) -> None:
        """Release the folder; with `remove`, delete its content too. Raises: StorageError."""
        if self.copy is not None:
            self.copy.close()
        try:
            if remove:
                with explained(self.folder):
                    for name in self.layer.names(self.folder):
                        self.layer.unlink(self.folder / name)
                    self.layer.remove_folder(self.folder)
        finally:
            self._held.close()

    def new_path(self, kind: str) -> Path:
        """Return a new path for a file of this store."""
        self._next += 1
        return self.folder / f"{self._next:010d}.{kind}"

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _is_long(self, chains: int) -> bool:
        """Return whether the chain has more than `chains` times its usual links, or the bytes of that many copies."""
        content_bytes = self.copy.layout.content_bytes if self.copy is not None else 1 << 62
        return bool(self.chain) and (
            len(self.chain) > chains * self._chain_versions or sum(self.chain_bytes) > chains * content_bytes
        )

    def _advance(self) -> None:
        link = self.chain[0]
        if self.copy is None:
            self._forget(self.chain.pop(0))
            return
        self._apply(link)
        self._forget(self.chain.pop(0))

    def _apply(self, link: ChainLink) -> None:
        assert self.copy is not None
        try:
            self.copy.become(attestation_of(link), delta_changes(link, self.copy))
        except (WireError, CorruptSpool) as error:
            self._give_up(str(error))
            raise CorruptFrame(f"the copy cannot follow {link.opening}: {error}") from error
        except StorageError:
            if not self.copy.usable:
                self._must_recover = True
            raise

    def _create(self, link: ChainLink) -> None:
        try:
            found = head_of(link, None)
            changes = anchor_changes(link, found.layout, found.span_bytes)
            copy = copy_.create(self.layer, self.folder, attestation_of(link), found.layout, changes)
        except WireError as error:
            self._anchor, self.refused = None, str(error)
            raise
        if self.copy is not None:
            self.copy.close()
        self.copy, self._anchor, self._must_recover = copy, None, False

    def _give_up(self, why: str) -> None:
        """Remove the copy, and set `refused` to the reason. Does nothing without a copy."""
        if self.copy is None and not self._must_recover:
            return
        self.refused = why
        if self.copy is not None:
            self.copy.close()
        self.copy, self._must_recover = None, False
        with contextlib.suppress(StorageError):  # the next start refuses it
            copy_.remove(self.layer, self.folder)

    def _save(self, link: InMemory, kind: str) -> ChainLink:
        return OnDisk(self.layer, keep(self.layer, self.new_path(kind), link.publication))

    def _forget(self, link: ChainLink | None) -> None:
        if isinstance(link, OnDisk):
            with contextlib.suppress(OSError):  # the next start removes the file
                self.layer.unlink(link.stored.path)

    def _drop_chain(self) -> None:
        for link in self.chain:
            self._forget(link)
        self.chain = []

    def _note_fork(self) -> None:
        if self.highest_fork == max(self._forks, default=0):
            return
        path = self.folder / f"fork-{self.highest_fork:010d}"
        with explained(path):
            self.layer.create(path).close()
            self.layer.sync_folder(self.folder)
            self._forks.add(self.highest_fork)
            for fork in sorted(self._forks)[:-1]:
                self.layer.unlink(self.folder / f"fork-{fork:010d}")
                self._forks.discard(fork)

    # ---- after a start --------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        with explained(self.folder):
            names = self.layer.names(self.folder)
        self._forks = {int(found[1]) for name in names if (found := _FORK.fullmatch(name))}
        self.highest_fork = max(self._forks, default=0)
        numbered = sorted((int(found[1]), found[2]) for name in names if (found := _NAME.fullmatch(name)))
        self._next = max((number for number, _ in numbered), default=0)
        self._recover_copy()
        links: list[OnDisk] = []
        for number, kind in numbered:
            path = self.folder / f"{number:010d}.{kind}"
            stored = find(self.layer, path, Assembler(self._trust, max_content_bytes=MAX_RELAYED_BYTES))
            link = None if stored is None or kind == "derived" else OnDisk(self.layer, stored)
            if link is None:
                with explained(path):
                    self.layer.unlink(path)
            elif kind == "bundle":
                self._forget(self.bundle)
                self.bundle = link
            else:
                links.append(link)
        self._recover_chain(links)

    def _recover_copy(self) -> None:
        if self.copy is not None:
            self.copy.close()
            self.copy = None
        self.copy, self.refused = copy_.recover(self.layer, self.folder, self._trust)
        self._must_recover = False
        while self.chain and self.copy is not None and self.chain[0].opening.policy <= self.copy.policy:
            self._forget(self.chain.pop(0))

    def _recover_chain(self, links: list[OnDisk]) -> None:
        """Order the links on disk into a chain that starts at the copy, and delete all others.

        Without a copy, the chain is the one that ends at the newest link.
        """
        by_base = {(base_of(link), link.opening.base_digest): link for link in links}
        chain: list[ChainLink] = []
        # Links are joined by version and digest, so a link of other content is never in the chain.
        if self.copy is not None:
            at = (self.copy.policy, self.copy.digest)
            while (link := by_base.get(at)) is not None:
                chain.append(link)
                at = (link.opening.policy, link.closing.state_digest)
        elif links:
            by_end = {(link.opening.policy, link.closing.state_digest): link for link in links}
            last: OnDisk | None = max(links, key=lambda link: link.opening.policy)
            while last is not None:
                chain.insert(0, last)
                last = by_end.get((base_of(last), last.opening.base_digest))
        self.chain = chain
        for left in links:
            if left not in chain:
                self._forget(left)
