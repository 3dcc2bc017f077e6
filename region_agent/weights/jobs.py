"""Disk jobs of the weight cache, their outcomes, and notices: the values that the machine and the shell exchange.

The machine (`machine`) orders one job at a time. The shell (`executor`) has it performed in a thread
(`disk.weight_folder`) and hands the outcome back. A job carries everything that is needed to perform it; an outcome
says what is on disk now. A notice tells the shell what has changed, and what it must do in memory.
"""

from dataclasses import dataclass

from periplus.errors import PeriplusError, StorageError, WireError
from periplus.values.policy import Policy
from region_agent.weights.chain import ChainLink, InMemory
from region_agent.weights.held_versions import CopyFacts
from region_agent.weights.orders import DerivedOrder

# ---- jobs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveFork:
    """Record durably that this fork was seen, so that no older one is accepted after a crash."""

    fork: int


@dataclass(frozen=True, slots=True)
class SaveLink:
    """Write a publication to a file."""

    link: InMemory


@dataclass(frozen=True, slots=True)
class ForgetLink:
    """Remove the file of a publication, if it has one. A file that cannot be removed goes at the next start."""

    link: ChainLink


@dataclass(frozen=True, slots=True)
class CreateCopy:
    """Write a full state beside the copy, hash it, and replace the copy by it if it has the signed digest."""

    link: ChainLink


@dataclass(frozen=True, slots=True)
class AdvanceCopy:
    """Apply a delta to the copy by way of a redo log, and hash the result against the signed digest."""

    link: ChainLink


@dataclass(frozen=True, slots=True)
class RecoverCopy:
    """Open the copy anew after an error in the middle of a change: finish its redo log and hash it."""


@dataclass(frozen=True, slots=True)
class ProveCopy:
    """Hash the copy once more."""


@dataclass(frozen=True, slots=True)
class RemoveCopy:
    """Remove the copy's files. Those that cannot be removed are refused at the next start."""


@dataclass(frozen=True, slots=True)
class MakeDerived:
    """Derive a publication from the copy: a fold of `links`, or the full state if there are none."""

    order: DerivedOrder
    links: tuple[ChainLink, ...]


DiskJob = (
    SaveFork | SaveLink | ForgetLink | CreateCopy | AdvanceCopy | RecoverCopy | ProveCopy | RemoveCopy | MakeDerived
)

# ---- outcomes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobDone:
    """The job is done, and there is nothing more to say about it."""


@dataclass(frozen=True, slots=True)
class LinkSaved:
    """The publication is on disk: `link` reads it from there."""

    link: ChainLink


@dataclass(frozen=True, slots=True)
class CopyProven:
    """The copy on disk was hashed, and this is what it is."""

    copy: CopyFacts


@dataclass(frozen=True, slots=True)
class CopyUnproven:
    """The copy on disk is not what was signed, and why. An empty reason says that there is none."""

    why: str


@dataclass(frozen=True, slots=True)
class ContentRefused:
    """A publication does not lead to what the trainer signed. `why` is the cause, `error` is for who sent it."""

    error: WireError
    why: str


@dataclass(frozen=True, slots=True)
class DiskFailed:
    """The disk refused. Unless `is_copy_usable`, the copy was being overwritten, and must be recovered."""

    error: StorageError
    is_copy_usable: bool = True


@dataclass(frozen=True, slots=True)
class DerivedMade:
    """A derived publication is complete: bytes of its payload, and the seconds that it took."""

    num_bytes: int
    make_s: float


@dataclass(frozen=True, slots=True)
class DerivedNotMade:
    """A derived publication could not be completed, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class JobFaulted:
    """A fault in our own code ended the job."""

    why: str


JobOutcome = (
    JobDone
    | LinkSaved
    | CopyProven
    | CopyUnproven
    | ContentRefused
    | DiskFailed
    | DerivedMade
    | DerivedNotMade
    | JobFaulted
)

# ---- notices --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyRefused:
    """A copy or full state was refused, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class CopyMoved:
    """The copy is at another version than before. `is_new`: there was none before."""

    policy: Policy
    num_links: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class CopyServes:
    """Copy and chain on disk lead to the newest state, so older publications need not be kept in memory."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class DiskRefuses:
    """The disk has begun to refuse what is to be written."""

    error: StorageError


@dataclass(frozen=True, slots=True)
class DiskAccepts:
    """Everything is on disk again after the disk had refused."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The copy has reached what the gateway above sent for it alone."""

    policy: Policy
    digest: bytes


@dataclass(frozen=True, slots=True)
class TakeOverFailed:
    """The copy did not reach what the gateway above sent, and the error for who sent it."""

    error: PeriplusError


@dataclass(frozen=True, slots=True)
class DerivedReady:
    """A derived publication is complete."""

    order: DerivedOrder
    made: DerivedMade


@dataclass(frozen=True, slots=True)
class DerivedImpossible:
    """A derived publication could not be made."""

    order: DerivedOrder
    why: str


@dataclass(frozen=True, slots=True)
class DerivedGivenUp:
    """A derived publication serves its readers no longer; they must ask again."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class DerivedForgotten:
    """Nobody reads a derived publication any more, and nobody will."""

    number: int


CacheNotice = (
    CopyRefused
    | CopyMoved
    | CopyServes
    | DiskRefuses
    | DiskAccepts
    | TakenOver
    | TakeOverFailed
    | DerivedReady
    | DerivedImpossible
    | DerivedGivenUp
    | DerivedForgotten
)
