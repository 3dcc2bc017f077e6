"""Messages of one job inside the gateway, as values without protobuf. convert.py makes them and turns them back.

A gateway relays most of what workers and the trainer say to each other. It needs to know only whom a message is from or
for, and its kind. Such a message carries its `payload` through unread: convert.py put it there and takes it out again.
What the gateway takes part in itself has fields: frames of its own workers (KeyedFrame), which it spools, commits of
these frames, and what it reports or requests.

    FromBelow    from a worker or a remote gateway            ToAbove    to the trainer or the home gateway
    FromAbove    from the trainer or the home gateway         ToBelow    to a worker or a remote gateway
"""

from dataclasses import dataclass
from enum import StrEnum

from periplus.values.transport_keys import FrameKey, KeyedFrame


class UpKind(StrEnum):
    """Kinds of a relayed message from below, as far as routing depends on them.

    HELLO: the worker says that it is reached over this stream. GONE: it has left. FRAME: a frame that another region's
    gateway keeps. GATEWAY: the hello of a remote gateway, for this gateway only. OTHER: anything else.
    """

    HELLO = "hello"
    GONE = "gone"
    FRAME = "frame"
    GATEWAY = "gateway"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedUp:
    """A message of a worker that is passed on towards the trainer as it came."""

    worker_id: str
    kind: UpKind
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWorker:
    """Report that a worker can no longer be reached, because its stream ended without a word from it.

    `connection_lost` says that the stream was a remote gateway's, so that the worker itself may be well.
    """

    worker_id: str
    reason: str
    connection_lost: bool


@dataclass(frozen=True, slots=True)
class AnchorRequest:
    """Request for a full state of the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedDown:
    """A message to one worker that is passed on as it came. `is_finish` says that the job is done."""

    worker_id: str
    is_finish: bool
    payload: object


@dataclass(frozen=True, slots=True)
class LocalCommit:
    """The trainer's ledger has committed these frames of this region's spool."""

    keys: tuple[FrameKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedCommit:
    """The trainer's ledger has committed frames in the spool of another region, whose gateway must be told."""

    region: str
    payload: object


@dataclass(frozen=True, slots=True)
class SpoolReceipt:
    """Promise to local workers that these frames are in the spool, so that the workers may forget them."""

    keys: tuple[FrameKey, ...]


FromBelow = RelayedUp | KeyedFrame
ToAbove = RelayedUp | KeyedFrame | LostWorker | AnchorRequest
FromAbove = RelayedDown | LocalCommit | RelayedCommit
ToBelow = RelayedDown | RelayedCommit | SpoolReceipt
