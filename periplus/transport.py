"""The transport key of a frame, what has been seen of a sender, and a frame with its key as one record.

A frame travels from its worker over gateways to the trainer, each of which may see it again after a lost connection.
(worker, epoch, sequence) names it for good: the epoch is one start of the worker's process, the sequence rises by one a
frame. Whoever remembers a key drops the resend; whoever has forgotten it passes it on, and the next one drops it. So
forgetting is harmless, and everything here is bounded; remembering what was never seen would be a loss, and never is.

    record    a packed codec frame (codec/frame.py), epoch u64, sequence u64 little-endian, worker id in UTF-8
"""

import bisect
import struct
from collections import OrderedDict
from dataclasses import dataclass, field

from periplus.codec.frame import Frame, pack, read
from periplus.errors import CorruptFrame

MAX_RUNS = 1024
"""Gaps remembered in one sender's sequence; in order there is one run, and a gap is a frame that is still under way."""

MAX_SENDERS = 4096
"""Starts of workers remembered, the last to speak longest."""

_NUMBERS = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameKey:
    """Who sent the frame, from which start of the sender, and which one."""

    worker_id: str
    epoch: int
    sequence: int


@dataclass(slots=True)
class _Runs:
    """A set of numbers as runs [start, end), in order."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def holds(self, number: int) -> bool:
        index = bisect.bisect_right(self.starts, number) - 1
        return index >= 0 and number < self.ends[index]

    def add(self, number: int) -> None:
        index = bisect.bisect_right(self.starts, number)
        after_one, before_one = index > 0 and self.ends[index - 1] == number, self._starts_at(index, number + 1)
        if after_one and before_one:
            self.ends[index - 1] = self.ends.pop(index)
            del self.starts[index]
        elif after_one:
            self.ends[index - 1] = number + 1
        elif before_one:
            self.starts[index] = number
        else:
            self.starts.insert(index, number)
            self.ends.insert(index, number + 1)
        if len(self.starts) > MAX_RUNS:
            del self.starts[0], self.ends[0]

    def _starts_at(self, index: int, number: int) -> bool:
        return index < len(self.starts) and self.starts[index] == number


class SeenFrames:
    """Keys that were added, but for those that were forgotten for room."""

    def __init__(self) -> None:
        self._senders: OrderedDict[tuple[str, int], _Runs] = OrderedDict()

    def __contains__(self, key: FrameKey) -> bool:
        runs = self._senders.get((key.worker_id, key.epoch))
        return runs is not None and runs.holds(key.sequence)

    def add(self, key: FrameKey) -> bool:
        """False if it was there."""
        if key in self:
            return False
        sender = (key.worker_id, key.epoch)
        self._senders.setdefault(sender, _Runs()).add(key.sequence)
        self._senders.move_to_end(sender)
        if len(self._senders) > MAX_SENDERS:
            self._senders.popitem(last=False)
        return True


def pack_keyed(key: FrameKey, frame: Frame) -> tuple[bytes, bytes]:
    """The record, in two pieces."""
    return pack(frame), _NUMBERS.pack(key.epoch, key.sequence) + key.worker_id.encode()


def unpack_keyed(data: bytes, *, max_payload_bytes: int) -> tuple[FrameKey, Frame]:
    """The inverse of the pieces joined. Raises: CorruptFrame, UnknownCodec."""
    found = read(data, 0, max_payload_bytes=max_payload_bytes)
    if found is None or len(data) < found[1] + _NUMBERS.size:
        raise CorruptFrame(f"a record of {len(data)} bytes ends within its frame or its transport key")
    frame, end = found
    epoch, sequence = _NUMBERS.unpack_from(data, end)
    try:
        worker_id = data[end + _NUMBERS.size :].decode()
    except UnicodeDecodeError as error:
        raise CorruptFrame(f"the transport key of a record of {len(data)} bytes names no worker: {error}") from error
    return FrameKey(worker_id=worker_id, epoch=epoch, sequence=sequence), frame
