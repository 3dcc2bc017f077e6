"""One job's folder of weights, open for one process, and the disk jobs that change it.

    <number>.bundle, <number>.delta    complete publications (stored_publication.py)
    copy-<number>.*                    the copy: a full state (full_state.py)
    <number>.derived                   derived publications for readers, until the next start (derived.py)
    fork-<number>                      the highest fork seen: an empty file
    lock

The folder decides nothing: the machine (`region_agent.weights.machine`) orders jobs, and each job's outcome says what
is on disk then. Opening reads everything that an earlier process left, and proves it. Bounds on disk: one copy (two
while one replaces another), a redo log, the links that the machine keeps, and a bundle. The folder is not thread-safe:
it has one caller at a time.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from periplus.errors import CorruptFrame, CorruptSpool, StorageError, WireError
from periplus.process.telemetry import event
from periplus.publication import Assembler, PublicationKind, Trust
from periplus.spool.files import explained
from region_agent.weights.chain import MAX_RELAYED_BYTES, ChainLink, InMemory, attestation_of
from region_agent.weights.changes import anchor_changes, delta_changes, fold, full, head_of
from region_agent.weights.disk import full_state as copy_
from region_agent.weights.disk.files import OsWeightFiles, WeightFiles
from region_agent.weights.disk.full_state import FullState
from region_agent.weights.disk.stored_publication import StoredPublication, find, keep
from region_agent.weights.held_versions import CopyFacts, HeldVersions, chain_of
from region_agent.weights.jobs import (
    AdvanceCopy,
    ContentRefused,
    CopyProven,
    CopyUnproven,
    CreateCopy,
    DiskFailed,
    DiskJob,
    ForgetLink,
    JobDone,
    JobOutcome,
    LinkSaved,
    MakeDerived,
    ProveCopy,
    RecoverCopy,
    RemoveCopy,
    SaveFork,
    SaveLink,
)

log = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{10})\.(bundle|delta|derived)")
"""Names of files with a publication: number and kind."""
_FORK = re.compile(r"fork-(\d{10})")
"""Name of the empty file that records the highest fork seen."""


class WeightFolder:
    """One job's folder. `copy` is the proven full state, or None."""

    def __init__(self, folder: Path, trust: Trust, layer: WeightFiles, held_open: ExitStack) -> None:
        self.folder = folder
        self.layer = layer
        self.copy: FullState | None = None
        self._trust = trust
        self._last_number = 0
        self._held_open = held_open

    @classmethod
    def open(cls, folder: Path, trust: Trust, layer: WeightFiles | None = None) -> tuple[Self, HeldVersions, str]:
        """Open the folder. Return it, what an earlier process left in it, and why a copy was refused if one was.

        It reads all of it. Raises: Conflict, StorageError.
        """
        layer = layer or OsWeightFiles()
        with ExitStack() as held_open:
            with explained(folder):
                layer.make_folder(folder)
                held_open.enter_context(layer.lock(folder / "lock"))
            # Lock and copy are released in the opposite order if the rest fails; otherwise `close` does it.
            opened = cls(folder, trust, layer, held_open)
            held_open.callback(opened._close_copy)
            held, refused = opened._recovered()
            opened._held_open = held_open.pop_all()
            return opened, held, refused

    def perform(self, job: DiskJob) -> JobOutcome:
        """Do a job and return its outcome; derivations are made from `parts` instead.

        Raises: only what is a fault of ours.
        """
        try:
            return self._done(job)
        except WireError as error:
            return ContentRefused(error, str(error))
        except StorageError as error:
            return DiskFailed(error, is_copy_usable=self.copy is None or self.copy.usable)

    def parts(self, job: MakeDerived) -> Iterator[bytes]:
        """Yield the parts of a derived publication. Raises: WrongBase, CorruptFrame, StorageError."""
        assert self.copy is not None
        if not job.links:
            return full(self.copy)
        assert job.order.key.have is not None
        return fold(self.copy, job.links, job.order.key.have)

    def derived_path(self, number: int) -> Path:
        """Return the path of the file of a derived publication."""
        return self.folder / f"{number:010d}.derived"

    def close(self, *, remove: bool = False) -> None:
        """Release the folder; with `remove`, delete its content too. Raises: StorageError."""
        try:
            if remove:
                with explained(self.folder):
                    for name in self.layer.names(self.folder):
                        self.layer.unlink(self.folder / name)
                    self.layer.remove_folder(self.folder)
        finally:
            self._held_open.close()

    # ---- jobs -----------------------------------------------------------------------------------------------------

    def _done(self, job: DiskJob) -> JobOutcome:
        match job:
            case SaveFork(fork):
                self._save_fork(fork)
                return JobDone()
            case SaveLink(link):
                return LinkSaved(self._save(link))
            case ForgetLink(link):
                self._forget(link)
                return JobDone()
            case CreateCopy(link):
                return self._create(link)
            case AdvanceCopy(link):
                return self._advance(link)
            case RecoverCopy():
                # Opening it anew finishes the redo log and hashes the whole file.
                self._close_copy()
                self.copy, why = copy_.recover(self.layer, self.folder, self._trust)
                return CopyUnproven(why) if self.copy is None else CopyProven(_facts(self.copy))
            case ProveCopy():
                assert self.copy is not None
                why = self.copy.differs()
                return CopyUnproven(why) if why else CopyProven(_facts(self.copy))
            case RemoveCopy():
                self._close_copy()
                with contextlib.suppress(StorageError):
                    copy_.remove(self.layer, self.folder)
                return JobDone()
            case MakeDerived():
                raise AssertionError("a derived publication is made from its parts")

    def _create(self, link: ChainLink) -> JobOutcome:
        found = head_of(link, None)
        changes = anchor_changes(link, found.layout, found.span_bytes)
        copy = copy_.create(self.layer, self.folder, attestation_of(link), found.layout, changes)
        # The earlier copy serves until the new one is proven.
        self._close_copy()
        self.copy = copy
        return CopyProven(_facts(copy))

    def _advance(self, link: ChainLink) -> JobOutcome:
        assert self.copy is not None
        try:
            self.copy.become(attestation_of(link), delta_changes(link, self.copy))
        except (WireError, CorruptSpool) as error:
            # Whatever is wrong with the content, the gateway above is told that its publication is, so that it sends a
            # full state.
            return ContentRefused(CorruptFrame(f"the copy cannot follow {link.opening}: {error}"), str(error))
        return CopyProven(_facts(self.copy))

    def _save(self, link: InMemory) -> StoredPublication:
        self._last_number += 1
        kind = "bundle" if link.opening.kind is PublicationKind.BUNDLE else "delta"
        return keep(self.layer, self.folder / f"{self._last_number:010d}.{kind}", link.publication)

    def _forget(self, link: ChainLink) -> None:
        if isinstance(link, StoredPublication):
            with contextlib.suppress(OSError):  # the next start removes the file
                self.layer.unlink(link.path)

    def _save_fork(self, fork: int) -> None:
        path = self.folder / f"fork-{fork:010d}"
        with explained(path):
            names = self.layer.names(self.folder)
            if path.name not in names:  # an attempt whose sync failed has left the file
                self.layer.create(path).close()
            # The name is the record: sync it before the older ones go, so that one is always there.
            self.layer.sync_folder(self.folder)
            for name in names:
                if _FORK.fullmatch(name) and name != path.name:
                    self.layer.unlink(self.folder / name)

    def _close_copy(self) -> None:
        if self.copy is not None:
            self.copy.close()
        self.copy = None

    # ---- after a start --------------------------------------------------------------------------------------------

    def _recovered(self) -> tuple[HeldVersions, str]:
        with explained(self.folder):
            names = self.layer.names(self.folder)
        fork = max((int(found[1]) for name in names if (found := _FORK.fullmatch(name))), default=0)
        numbered = sorted((int(found[1]), found[2]) for name in names if (found := _NAME.fullmatch(name)))
        # New files get numbers above those that are here.
        self._last_number = max((number for number, _ in numbered), default=0)
        self.copy, refused = copy_.recover(self.layer, self.folder, self._trust)
        copy = None if self.copy is None else _facts(self.copy)
        # The chain is what continues from the proven copy. Other deltas can serve nobody, and are removed.
        bundle, links = self._publications(numbered)
        chain = chain_of(links, copy)
        for link in links:
            if link not in chain:
                self._forget(link)
        return HeldVersions(copy=copy, chain=chain, bundle=bundle, highest_fork=fork, saved_fork=fork), refused

    def _publications(
        self, numbered: list[tuple[int, str]]
    ) -> tuple[StoredPublication | None, list[StoredPublication]]:
        """Return the newest bundle and all deltas that are whole and admitted, and remove all other files."""
        bundle: StoredPublication | None = None
        links: list[StoredPublication] = []
        for number, kind in numbered:
            path = self.folder / f"{number:010d}.{kind}"
            # Every file gets an assembler of its own, which checks the signatures under this job's authority.
            link = find(self.layer, path, Assembler(self._trust, max_content_bytes=MAX_RELAYED_BYTES))
            # Derived publications served readers of the earlier process, and are made again if needed.
            if link is None or kind == "derived":
                if link is None and kind != "derived":
                    # A kill while it was written leaves such a file, and so does damage. What follows it cannot be
                    # served, so a reader or this gateway will fetch more than it would have to.
                    event(log, logging.WARNING, "publication_not_whole", file=path, then="removed and fetched again")
                with explained(path):
                    self.layer.unlink(path)
            elif kind == "bundle":
                if bundle is not None:
                    self._forget(bundle)
                bundle = link
            else:
                links.append(link)
        return bundle, links


def _facts(copy: FullState) -> CopyFacts:
    return CopyFacts(
        attestation=copy.attestation, content_bytes=copy.layout.content_bytes, num_spans=len(copy.placement.spans)
    )
