"""Packs finished trajectories into frames: how many go into one, and their encoding. Pure.

A *frame* is the compressed batch of trajectories that a worker sends as one message (periplus/codec/frame.py).
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
        size = len(trajectory.prompt_ids) + len(trajectory.completion_ids)
        if part and num_tokens + size > max_tokens:
            yield part
            part, num_tokens = [], 0
        part.append(trajectory)
        num_tokens += size
    if part:
        yield part
