"""Transport keys of frames: the key of a frame, the set of keys seen, and a frame with its key as one record.

A frame travels from its worker over gateways to the trainer. Each of them may receive it again after a lost connection.
The key (worker, epoch, sequence) identifies the frame permanently: the epoch is one start of the worker's process, and
the sequence rises by one per frame. A receiver that remembers the key drops the repeated frame. A receiver that has
forgotten it passes the frame on, and the next one drops it. So forgetting is harmless, and all memory here is bounded.
A key that was never added is never reported as seen, because that would lose a frame.

    record    a packed codec frame (codec/frame.py), epoch u64, sequence u64 little-endian, worker id in UTF-8
"""

import bisect
import struct
from collections import OrderedDict
from dataclasses import dataclass, field

from periplus.codec.frame import Frame, pack, read
from periplus.errors import CorruptFrame

MAX_RUNS = 1024
"""Largest number of runs of consecutive sequence numbers that are remembered per sender. Frames that arrive in order
make one run; a gap is a frame that is still in transit. Chosen by hand."""

MAX_SENDERS = 4096
"""Largest number of (worker, epoch) pairs that are remembered; the one that was silent longest is forgotten first.
Chosen by hand."""

_NUMBERS = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameKey:
    """The key of a frame: its worker, the start of the worker's process, and the frame's number."""

    worker_id: str
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class KeyedFrame:
    """A frame with its transport key."""

    key: FrameKey
    frame: Frame


@dataclass(slots=True)
class _Runs:
    """A set of numbers, stored as sorted runs [start, end)."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def holds(self, number: int) -> bool:
        index = bisect.bisect_right(self.starts, number) - 1
        return index >= 0 and number < self.ends[index]

    def add(self, number: int) -> None:
        index = bisect.bisect_right(self.starts, number)
        # The new number may touch the run before it, the run after it, or both.
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
        # With too many gaps the lowest run is forgotten.
        if len(self.starts) > MAX_RUNS:
            del self.starts[0], self.ends[0]

    def _starts_at(self, index: int, number: int) -> bool:
        return index < len(self.starts) and self.starts[index] == number


class SeenFrames:
    """The set of keys that were added, except for those that were forgotten to bound its size."""

    def __init__(self) -> None:
        self._senders: OrderedDict[tuple[str, int], _Runs] = OrderedDict()

    def __contains__(self, key: FrameKey) -> bool:
        runs = self._senders.get((key.worker_id, key.epoch))
        return runs is not None and runs.holds(key.sequence)

    def add(self, key: FrameKey) -> bool:
        """Add a key. Return False if it was there already."""
        if key in self:
            return False
        sender = (key.worker_id, key.epoch)
        self._senders.setdefault(sender, _Runs()).add(key.sequence)
        self._senders.move_to_end(sender)
        if len(self._senders) > MAX_SENDERS:
            self._senders.popitem(last=False)
        return True


def pack_keyed(key: FrameKey, frame: Frame) -> tuple[bytes, bytes]:
    """Return the record of a frame and its key, in two pieces."""
    return pack(frame), _NUMBERS.pack(key.epoch, key.sequence) + key.worker_id.encode()


def unpack_keyed(data: bytes, *, max_payload_bytes: int) -> tuple[FrameKey, Frame]:
    """Invert `pack_keyed` on its joined pieces. Raises: CorruptFrame, UnknownCodec."""
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
