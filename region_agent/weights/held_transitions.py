"""Transitions of the held versions: what a publication, the outcome of a disk job or damage makes of them.

Each function takes the versions held before (`held_versions.HeldVersions`) and returns a `HeldChange`: those held
after, jobs that clean up the disk, and why a copy was refused. `next_upkeep` says what is to be written next.

The rules:

- Forks come first: after a crash, no older fork may be accepted again.
- A link counts as saved, and a version as the copy's, only by the outcome of the job that wrote it.
- The oldest links are applied to the copy until the chain has its usual length. A reader that still receives the copy
  holds that up, to at most `MOST_CHAINS` times this length. Without a copy, the oldest links are dropped instead.
- A copy that is not what was signed, or that cannot follow the chain, is given up. So is one that a failing disk has
  not let advance for `MOST_CHAINS` times the usual length, because the chain must stay bounded.

All functions are pure. They know no readers, files, clocks or tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from periplus.publication import Publication, PublicationKind
from region_agent.weights.chain import ChainLink, InMemory
from region_agent.weights.held_versions import MOST_CHAINS, HeldVersions
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
    JobFaulted,
    JobOutcome,
    LinkSaved,
    ProveCopy,
    RecoverCopy,
    RemoveCopy,
    SaveFork,
    SaveLink,
)


@dataclass(frozen=True, slots=True)
class HeldChange:
    """The versions held after a change, jobs that clean up in this order, and why a copy was refused if one was."""

    held: HeldVersions
    cleanups: tuple[DiskJob, ...] = ()
    refused: str = ""


def forgetting(links: Sequence[ChainLink]) -> tuple[DiskJob, ...]:
    """Return the jobs that remove the files of these links."""
    return tuple(ForgetLink(link) for link in links if not isinstance(link, InMemory))


# ---- what comes in --------------------------------------------------------------------------------------------------


def taken(held: HeldVersions, publication: Publication) -> HeldChange:
    """Hold a complete, admitted publication in memory, unless its version is held already."""
    link, opening = InMemory(publication), publication.opening
    match opening.kind:
        case PublicationKind.BUNDLE:
            old = () if held.bundle is None else (held.bundle,)
            return HeldChange(replace(held, bundle=link), forgetting(old))
        # An anchor replaces the copy and the chain, unless it only repeats the newest state and the copy leads there.
        case PublicationKind.ANCHOR if opening.policy != held.newest or not held.reaches:
            return HeldChange(replace(held, anchor=link, chain=()), forgetting(held.chain))
        case PublicationKind.DELTA if opening.base == held.newest:
            return HeldChange(replace(held, chain=(*held.chain, link)))
        case PublicationKind.DELTA if held.newest is None or opening.policy > held.newest:
            # The delta continues from a state that never arrived here.
            change = abandoned(held, f"{opening} continues from a version that is not here")
            return replace(change, held=replace(change.held, chain=(link,)))
        case _:
            return HeldChange(held)


def given_up(held: HeldVersions, why: str) -> HeldChange:
    """Drop the copy, and keep the chain. Does nothing without a copy."""
    if held.copy is None and not held.is_copy_unknown:
        return HeldChange(held)
    return HeldChange(replace(held, copy=None, is_copy_unknown=False), (RemoveCopy(),), why)


def abandoned(held: HeldVersions, why: str) -> HeldChange:
    """Drop copy, anchor and chain, because what is here cannot be used."""
    change = given_up(held, why)
    cleanups = (*forgetting(held.chain), *change.cleanups)
    return HeldChange(replace(change.held, anchor=None, chain=()), cleanups, change.refused)


# ---- what is written ------------------------------------------------------------------------------------------------


def next_upkeep(held: HeldVersions, *, chain_versions: int, is_copy_read: bool) -> DiskJob | None:
    """Return what is to be done next for what is held, or None if there is nothing."""
    if held.highest_fork != held.saved_fork:
        return SaveFork(held.highest_fork)
    # Nothing may be applied to a half-written copy, and nothing derived from it.
    if held.is_copy_unknown:
        return RecoverCopy()
    if isinstance(held.bundle, InMemory):
        return SaveLink(held.bundle)
    # The anchor goes before its deltas, which need the state that they start from.
    if held.anchor is not None:
        return CreateCopy(held.anchor)
    for link in held.chain:
        if isinstance(link, InMemory):
            return SaveLink(link)
    # A copy that a reader still receives stays where it is, until the chain is too long even for that.
    if held.is_long(1, chain_versions) and not (is_copy_read and not held.is_long(MOST_CHAINS, chain_versions)):
        return ForgetLink(held.chain[0]) if held.copy is None else AdvanceCopy(held.chain[0])
    return None


def after_job(held: HeldVersions, job: DiskJob, outcome: JobOutcome) -> HeldChange:
    """Return what a job and its outcome make of what is held."""
    match job, outcome:
        # What a fault left on disk is not known, so nothing of copy and chain is used any more.
        case _, JobFaulted(why):
            return abandoned(held, why)
        # Still unknown; recovery is tried again.
        case RecoverCopy(), DiskFailed():
            return HeldChange(replace(held, copy=None, is_copy_unknown=True))
        # What could not be written is still held in memory, and is ordered again.
        case _, DiskFailed(_, is_copy_usable):
            return HeldChange(replace(held, is_copy_unknown=held.is_copy_unknown or not is_copy_usable))
        case SaveFork(fork), JobDone():
            return HeldChange(replace(held, saved_fork=fork))
        case SaveLink(link), LinkSaved(saved):
            return _saved(held, link, saved)
        case ForgetLink(link), JobDone():
            return HeldChange(replace(held, chain=tuple(each for each in held.chain if each is not link)))
        case CreateCopy(link), CopyProven(copy):
            # A takeover makes the copy from a publication that is not the anchor here.
            anchor = None if held.anchor is link else held.anchor
            return HeldChange(replace(held, copy=copy, is_copy_unknown=False, anchor=anchor))
        case CreateCopy(link), ContentRefused(_, why):
            return HeldChange(replace(held, anchor=None if held.anchor is link else held.anchor), (), why)
        case AdvanceCopy(link), CopyProven(copy):
            chain = tuple(each for each in held.chain if each is not link)
            return HeldChange(replace(held, copy=copy, chain=chain), forgetting((link,)))
        case ((AdvanceCopy() | ProveCopy()), (ContentRefused(why=why) | CopyUnproven(why=why))):
            return given_up(held, why)
        case RecoverCopy(), CopyProven(copy):
            # Recovery may have finished a redo log, so the copy may have the first links already.
            old = tuple(link for link in held.chain if link.opening.policy <= copy.policy)
            chain = held.chain[len(old) :]
            return HeldChange(replace(held, copy=copy, is_copy_unknown=False, chain=chain), forgetting(old))
        case RecoverCopy(), CopyUnproven(why):
            return HeldChange(replace(held, copy=None, is_copy_unknown=False), (), why)
        case (ProveCopy(), CopyProven()) | (RemoveCopy(), JobDone()):
            return HeldChange(held)
        case _:
            raise AssertionError(f"{outcome} is no outcome of {job}")


def shortened(held: HeldVersions, *, chain_versions: int) -> HeldChange:
    """Give up the copy if the disk has refused for too long, so that the chain stays bounded."""
    if not held.is_long(MOST_CHAINS, chain_versions):
        return HeldChange(held)
    # The chain can be shortened only without a copy that its first link must continue from.
    change = given_up(held, "the disk did not let it advance for too long")
    held = replace(change.held, anchor=None)
    forgotten: list[ChainLink] = []
    while held.is_long(1, chain_versions):
        forgotten.append(held.chain[0])
        held = replace(held, chain=held.chain[1:])
    return HeldChange(held, (*change.cleanups, *forgetting(forgotten)), change.refused)


# ---- inside ---------------------------------------------------------------------------------------------------------


def _saved(held: HeldVersions, link: InMemory, saved: ChainLink) -> HeldChange:
    if held.bundle is link:
        return HeldChange(replace(held, bundle=saved))
    if held.holds(link):
        return HeldChange(replace(held, chain=tuple(saved if each is link else each for each in held.chain)))
    return HeldChange(held, forgetting((saved,)))  # it was dropped meanwhile
