"""What the intake hands on: trajectories that are on disk, samples that were refused, and frames that are committed.

A *frame* is the compressed batch of trajectories that a worker sends at once. The intake (frames.py) makes these values
once a frame is on disk, and the ledger's driver (ledger_driver.py) tells the ledger of them. Nothing here decides
anything.
"""

from dataclasses import dataclass

from periplus.errors import WireError
from periplus.spool.format import Position
from periplus.values.trajectory import Trajectory, content_digest
from periplus.values.transport_keys import FrameKey


@dataclass(frozen=True, slots=True)
class KeptTrajectory:
    """A trajectory that is on disk: its content's digest, the position of its frame in the store, its index there."""

    trajectory: Trajectory
    digest: bytes
    frame: Position
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSample:
    """A sample that was refused, with the lease that it answers and the error that says why."""

    lease_id: int
    group: int
    sample: int
    why: WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A frame whose valid trajectories are on disk.

    It may be acknowledged to `region`, which spools it, once the ledger's decisions about its trajectories are in the
    audit. `kept` is empty for a resend, or if nothing of the frame is valid. `refusal` is the first error found in it,
    or None. `refused` are its invalid samples, as far as it could be read.
    """

    key: FrameKey
    region: str
    num_bytes: int
    kept: tuple[KeptTrajectory, ...] = ()
    refusal: WireError | None = None
    refused: tuple[RefusedSample, ...] = ()


def kept(frame: Position, trajectories: tuple[Trajectory, ...]) -> tuple[KeptTrajectory, ...]:
    """Return the trajectories of a frame that is on disk at position `frame`, with their digests and indexes."""
    return tuple(KeptTrajectory(t, content_digest(t), frame, index) for index, t in enumerate(trajectories))
