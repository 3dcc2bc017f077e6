"""Packs finished trajectories into frames: which go into one, and their encoding. Pure.

A *frame* is the compressed batch of trajectories that a worker sends as one message (periplus/codec/frame.py). Samples
compress better together, above all those of one prompt, but they end one by one. So a finished sample *lingers* for a
bounded time, in which others join it. It does not linger when no other sample is on its way.
"""

from collections.abc import Iterator, Sequence

from periplus.codec import trajectory as trajectory_codec
from periplus.codec.frame import CodecId, Frame
from periplus.values.trajectory import Trajectory

FRAME_TOKENS = 200_000
"""Largest number of tokens in one frame, unless a single result has more.

A completion token takes 9 bytes and a prompt token 4, so a frame stays below half of rpc.MAX_MESSAGE_BYTES. So does the
longest single result that a job may ask for.
"""

LINGER_S = 0.25
"""Seconds that a finished sample waits at most for others to share its frame. A step of training takes longer.
Chosen by hand; what the demo then sends is in docs/design/0011-engines.md.
"""


class LingeringResults:
    """Finished trajectories that wait for others, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: list[Trajectory] = []
        self._num_tokens = 0
        self._since_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, trajectories: Sequence[Trajectory], now_s: float) -> None:
        """Add finished trajectories."""
        if not self._waiting:
            self._since_s = now_s
        self._waiting += trajectories
        self._num_tokens += sum(map(_num_tokens, trajectories))

    def wait_s(self, now_s: float, *, more_come: bool) -> float | None:
        """Return for how many seconds to wait before `take`; 0 if it is time, None if nothing waits.

        `more_come`: other samples are on their way.
        """
        if not self._waiting:
            return None
        if not more_come or self._num_tokens >= FRAME_TOKENS:
            return 0.0
        return max(0.0, self._since_s + LINGER_S - now_s)

    def take(self) -> tuple[Trajectory, ...]:
        """Remove and return all of them, sorted by group and sample, so that a group's samples lie together."""
        taken = sorted(self._waiting, key=lambda trajectory: (trajectory.group, trajectory.sample))
        self._waiting, self._num_tokens = [], 0
        return tuple(taken)


def frames_of(trajectories: Sequence[Trajectory], *, zstd_level: int) -> Iterator[Frame]:
    """Yield the trajectories in order as frames of at most FRAME_TOKENS tokens, compressed at `zstd_level`."""
    for part in parts_of(trajectories, FRAME_TOKENS):
        yield Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, trajectory_codec.encode(part, level=zstd_level))


def parts_of(trajectories: Sequence[Trajectory], max_tokens: int) -> Iterator[Sequence[Trajectory]]:
    """Yield the trajectories in order, in parts of at most `max_tokens` tokens.

    A trajectory with more tokens is a part of its own.
    """
    part: list[Trajectory] = []
    num_tokens = 0
    for trajectory in trajectories:
        size = _num_tokens(trajectory)
        if part and num_tokens + size > max_tokens:
            yield part
            part, num_tokens = [], 0
        part.append(trajectory)
        num_tokens += size
    if part:
        yield part


def _num_tokens(trajectory: Trajectory) -> int:
    return len(trajectory.prompt_ids) + len(trajectory.completion_ids)
