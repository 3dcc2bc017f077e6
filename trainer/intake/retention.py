"""How long frames stay on disk: until a checkpoint that covers them, and then while there is room for them.

A frame is *settled* when each of its samples was consumed, dropped, used in an evaluation or refused; it is *covered*
when the oldest checkpoint that is kept already contains all that. An uncovered frame may be replayed by a restore, and
is never given up. Covered ones are kept for the audit up to `max_bytes`, oldest given up first, always a prefix of the
store. Pure bookkeeping: it says what may go, the caller deletes.
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
    """Frames of one store in the order of writing."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._frames: deque[_Frame] = deque()
        self._by_id: dict[Position, _Frame] = {}
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the frames that are kept."""
        return self._num_bytes

    def add(self, frame: Position, num_bytes: int, num_samples: int, version: int) -> None:
        """A frame was written while the trainer was at `version`."""
        entry = _Frame(frame, num_bytes, num_samples, version)
        self._frames.append(entry)
        self._by_id[frame] = entry
        self._num_bytes += num_bytes

    def settle(self, frame: Position, version: int) -> None:
        """One more of its samples is settled, by the step or evaluation at `version`."""
        entry = self._by_id[frame]
        assert entry.num_unsettled > 0
        entry.num_unsettled -= 1
        entry.settled_at = max(entry.settled_at, version)

    def give_up(self, covered_version: int) -> Position | None:
        """Forget what may go, given that the oldest kept checkpoint is of `covered_version`.

        Returns the first frame that stays; None if nothing goes.
        """
        went = False
        while len(self._frames) > 1 and self._num_bytes > self._max_bytes:
            entry = self._frames[0]
            if entry.num_unsettled or entry.settled_at >= covered_version:
                break
            self._frames.popleft()
            del self._by_id[entry.frame]
            self._num_bytes -= entry.num_bytes
            went = True
        return self._frames[0].frame if went else None
