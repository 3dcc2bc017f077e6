"""How long frames of trajectories stay on disk: until a checkpoint covers them, and then while there is room.

A frame is *settled* when each of its samples was consumed, dropped, used in an evaluation or refused. It is *covered*
when the oldest checkpoint that is kept already contains all of that. A restore may need a frame that is not covered, so
such a frame is never given up. Covered frames are kept for the audit, up to `max_bytes` in all. The oldest are given up
first, so what is given up is always a prefix of the store.

This is pure bookkeeping: it says which frames may go, and the caller deletes them.
"""

from collections import deque
from dataclasses import dataclass

from periplus.spool.format import Position


@dataclass(slots=True)
class _Frame:
    frame: Position
    num_bytes: int
    num_unsettled: int
    settled_at: int  # the newest version at which one of its samples was settled


class Retention:
    """The frames of one store in the order of writing, and which of them may be deleted."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._frames: deque[_Frame] = deque()
        self._by_id: dict[Position, _Frame] = {}
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Sum of the sizes of the frames that are kept, in bytes."""
        return self._num_bytes

    def add(self, frame: Position, num_bytes: int, num_samples: int, version: int) -> None:
        """Note that a frame of `num_samples` samples was written while the trainer was at `version`."""
        entry = _Frame(frame, num_bytes, num_samples, version)
        self._frames.append(entry)
        self._by_id[frame] = entry
        self._num_bytes += num_bytes

    def settle(self, frame: Position, version: int) -> None:
        """Note that one more sample of a frame is settled, while the trainer was at `version`."""
        entry = self._by_id[frame]
        assert entry.num_unsettled > 0
        entry.num_unsettled -= 1
        entry.settled_at = max(entry.settled_at, version)

    def first_needed(self, covered_version: int) -> Position | None:
        """Return the first frame that a restore from a checkpoint of `covered_version` reads; None without any frame.

        It is the newest one if no frame is needed.
        """
        needed = (f.frame for f in self._frames if f.num_unsettled or f.settled_at >= covered_version)
        return next(needed, self._frames[-1].frame if self._frames else None)

    def give_up(self, covered_version: int) -> Position | None:
        """Forget the frames that may be deleted, given that the oldest kept checkpoint is of `covered_version`.

        Return the position of the first frame that stays, or None if no frame may be deleted. One frame always stays.
        """
        went = False
        while len(self._frames) > 1 and self._num_bytes > self._max_bytes:
            entry = self._frames[0]
            # A checkpoint of version v covers what was settled before v. Frames go in order, so the first that must
            # stay ends it.
            if entry.num_unsettled or entry.settled_at >= covered_version:
                break
            self._frames.popleft()
            del self._by_id[entry.frame]
            self._num_bytes -= entry.num_bytes
            went = True
        return self._frames[0].frame if went else None
