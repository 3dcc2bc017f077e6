"""Publications without content, and a disk without bytes: what a weight cache's jobs find, and what they leave."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from periplus.codec.frame import CodecId
from periplus.errors import CorruptFrame, DiskFull
from periplus.publication import Attestation, Closing, Opening, Publication, PublicationKind, PublicationRecord
from periplus.values.policy import Policy
from region_agent.weights.chain import ChainLink, InMemory, attestation_of
from region_agent.weights.held_versions import CopyFacts, HeldVersions, chain_of
from region_agent.weights.jobs import (
    AdvanceCopy,
    ContentRefused,
    CopyProven,
    CopyUnproven,
    CreateCopy,
    DerivedMade,
    DerivedNotMade,
    DiskFailed,
    DiskJob,
    ForgetLink,
    JobDone,
    JobFaulted,
    JobOutcome,
    LinkSaved,
    MakeDerived,
    ProveCopy,
    RecoverCopy,
    RemoveCopy,
    SaveFork,
    SaveLink,
)
from region_agent.weights.reader_routes import RouteKind

Fate = Literal["ok", "full", "torn", "fault"]
"""What a job meets: nothing, a disk without room, an error while the copy is overwritten, or a bug of ours."""

COPY_BYTES = 1000
DELTA_BYTES = 100
_LIE = b"another state"


def publication(
    kind: PublicationKind,
    policy: Policy,
    base: Policy | None = None,
    *,
    is_derived: bool = False,
    is_lie: bool = False,
) -> Publication:
    """Of a state whose digest is its name; a lie leads to another state than was signed."""
    closing = Closing(
        num_chunks=3,
        payload_bytes=COPY_BYTES if base is None else DELTA_BYTES,
        root=_LIE if is_lie else b"",
        state_digest=str(policy).encode(),
    )
    opening = Opening(
        job_id="job-1",
        kind=kind,
        policy=policy,
        base=base,
        base_digest=b"" if base is None else str(base).encode(),
        codec=CodecId.WEIGHTS,
        max_payload_bytes=COPY_BYTES,
        max_chunks=3,
        content_bytes=COPY_BYTES,
        attested=publication(PublicationKind.ANCHOR, policy).attestation if is_derived else None,
    )
    return Publication(opening=opening, chunks=(), closing=closing)


def bundle(fork: int = 0) -> Publication:
    return publication(PublicationKind.BUNDLE, Policy(fork, 0))


def anchor(version: int, fork: int = 0, *, is_derived: bool = False, is_lie: bool = False) -> Publication:
    return publication(PublicationKind.ANCHOR, Policy(fork, version), is_derived=is_derived, is_lie=is_lie)


def delta(base: int, version: int, fork: int = 0, *, is_derived: bool = False, is_lie: bool = False) -> Publication:
    return publication(
        PublicationKind.DELTA, Policy(fork, version), Policy(fork, base), is_derived=is_derived, is_lie=is_lie
    )


def facts(policy: Policy) -> CopyFacts:
    """Of a copy at this version."""
    attested = publication(PublicationKind.ANCHOR, policy).attestation
    return CopyFacts(attestation=attested, content_bytes=COPY_BYTES, num_spans=2)


@dataclass(frozen=True, slots=True, eq=False)
class FakeLink:
    """A publication in a file."""

    opening: Opening
    closing: Closing

    def part(self, index: int) -> bytes:
        raise AssertionError("what decides reads no file")

    def records(self) -> Iterator[PublicationRecord]:
        raise AssertionError("what decides reads no file")


@dataclass
class SimulatedDisk:
    """`next` is what a redo log makes of the copy; `is_bad`: a bit of it has flipped, and nobody knows yet."""

    copy: Attestation | None = None
    next: Attestation | None = None
    is_bad: bool = False
    files: list[ChainLink] = field(default_factory=list)
    fork: int = 0

    def perform(self, job: DiskJob, fate: Fate) -> JobOutcome:
        match job, fate:
            case ((ForgetLink() | RemoveCopy()), ("full" | "torn")):
                fate = "ok"  # what cannot be removed is removed at the next start
            case _, "fault":
                return JobFaulted("a bug")
            case AdvanceCopy(link), "torn":
                self._check_advance()
                self.next = attestation_of(link)
                self.is_bad = self.is_bad or _lies(link)
                return DiskFailed(DiskFull("the disk is full"), is_copy_usable=False)
            case MakeDerived(), ("full" | "torn"):
                return DerivedNotMade("the disk is full")
            case _, ("full" | "torn"):
                return DiskFailed(DiskFull("the disk is full"), is_copy_usable=self.next is None)
        match job:
            case SaveFork(fork):
                self.fork = fork
            case SaveLink(link):
                self.files.append(FakeLink(link.opening, link.closing))
                return LinkSaved(self.files[-1])
            case ForgetLink(link):
                self.files = [each for each in self.files if each is not link]
            case CreateCopy(link):
                return self._change_copy(link, is_right=not _lies(link), is_kept=True)
            case AdvanceCopy(link):
                self._check_advance()
                assert self.copy is not None
                is_right = not _lies(link) and not self.is_bad and link.opening.base == self.copy.opening.policy
                return self._change_copy(link, is_right=is_right, is_kept=False)
            case RecoverCopy():
                return self._recover()
            case ProveCopy():
                assert self.copy is not None
                assert self.next is None
                return CopyUnproven("a bit flipped") if self.is_bad else CopyProven(facts(self.copy.opening.policy))
            case RemoveCopy():
                self.copy, self.next, self.is_bad = None, None, False
            case MakeDerived():
                self._check_sources(job)
                return DerivedMade(DELTA_BYTES, 0.0)
        return JobDone()

    def restarted(self) -> HeldVersions:
        """What the next process finds. It proves the copy, and removes files that are not in the chain."""
        found = self._recover()
        copy = found.copy if isinstance(found, CopyProven) else None
        links = [each for each in self.files if each.opening.kind is PublicationKind.DELTA]
        bundles = [each for each in self.files if each.opening.kind is PublicationKind.BUNDLE]
        chain = chain_of(links, copy)
        self.files = [*bundles[-1:], *chain]
        return HeldVersions(
            copy=copy,
            chain=chain,
            bundle=bundles[-1] if bundles else None,
            highest_fork=self.fork,
            saved_fork=self.fork,
        )

    def _change_copy(self, link: ChainLink, *, is_right: bool, is_kept: bool) -> JobOutcome:
        if is_right:
            self.copy, self.next, self.is_bad = attestation_of(link), None, False
            return CopyProven(facts(link.opening.policy))
        if not is_kept:
            self.copy, self.is_bad = None, False
        return ContentRefused(CorruptFrame("it leads elsewhere"), "it leads elsewhere")

    def _recover(self) -> CopyProven | CopyUnproven:
        self.copy, self.next = self.next or self.copy, None
        if self.copy is None:
            return CopyUnproven("")
        if self.is_bad:
            self.copy, self.is_bad = None, False
            return CopyUnproven("its digest is another")
        return CopyProven(facts(self.copy.opening.policy))

    def _check_advance(self) -> None:
        assert self.copy is not None
        assert self.next is None, "a half-written copy is recovered first"

    def _check_sources(self, job: MakeDerived) -> None:
        """What is derived starts at the copy that is there, and leads where it was ordered to lead."""
        assert self.copy is not None
        assert self.next is None, "nothing is derived from a half-written copy"
        at, key = self.copy.opening.policy, job.order.key
        passed = {at}
        for link in job.links:
            assert link.opening.base == at
            assert isinstance(link, InMemory) or link in self.files
            at = link.opening.policy
            passed.add(at)
        assert at == key.target == job.order.attestation.opening.policy
        assert bool(job.links) == (key.kind is RouteKind.FOLD)
        assert key.have is None or key.have in passed


def _lies(link: ChainLink) -> bool:
    return link.closing.root == _LIE
