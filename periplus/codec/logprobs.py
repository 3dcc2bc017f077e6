"""A column of float32 log-probabilities, bit for bit, in few bytes and without arithmetic that differs by machine.

Most of such a number is noise: 23 bits of mantissa that no coder shortens. What can be had:

- **Heads.** The top byte (sign and seven bits of exponent) takes a handful of values, which cost 2 to 3 bits.
- **Near 0.** A log-softmax in float32 is x - max - log(sum). Where the most likely token was sampled, which is most of
  the time once a model is sure, that is -log(sum), and sum is 1 + k / 2^23, for these are the float32 between 1 and 2.
  So the number is one of a short list and k names it: in 16 bits for all above -0.0078, and in few for those nearest
  to 0. The list is a polynomial in k over IEEE doubles, thus the same everywhere. A number that is not on the list,
  because its logarithm was rounded another way, is stored as any other: nothing depends on how an engine computed it.

Sections of a column of S numbers, of which N are near and F = S - N far; empty where there is nothing to say:

    near        one bit a number, if any is near; packed, lowest bit first
    heads       u8 [F] bits 24-31
    mantissas   u16 [F] bits 0-15, then u8 [F] bits 16-23
    near high   u8 [N] k >> 8
    near low    u8 [N] k & 255
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from periplus.errors import CorruptFrame

NUM_NEAR = 1 << 16

MIN_NEAR_SHARE = 1 / 3
"""From here on the list saves a seventh of a frame and more. It costs the reader a half more time, so less is not worth
it: docs/design/0006-trajectories.md."""


class Sections(NamedTuple):
    """A column before compression."""

    near: bytes
    heads: bytes
    mantissas: bytes
    near_high: bytes
    near_low: bytes


@cache
def near_bits() -> npt.NDArray[np.uint32]:
    """[NUM_NEAR] bit patterns of -log(1 + k / 2^23) as float32, by four terms of the series in double precision."""
    x = np.arange(NUM_NEAR, dtype=np.float64) * 2.0**-23
    logs = x * (1.0 - x * (0.5 - x * (1.0 / 3.0 - x * 0.25)))
    bits = (-logs).astype(np.float32).view(np.uint32)
    bits[0] = 0  # log-softmax gives +0.0
    bits.flags.writeable = False
    return bits


def split(logprobs: npt.NDArray[np.float32]) -> tuple[int, Sections]:
    """How many numbers are near, and the sections."""
    bits = np.ascontiguousarray(logprobs).view(np.uint32)
    is_near, near = _find_near(logprobs, bits)
    if len(near) < MIN_NEAR_SHARE * len(bits):
        is_near, near = np.zeros(len(bits), np.bool_), near[:0]
    far = bits[~is_near]
    sections = Sections(
        near=np.packbits(is_near, bitorder="little").tobytes() if len(near) else b"",
        heads=(far >> 24).astype(np.uint8).tobytes(),
        mantissas=far.astype("<u2").tobytes() + (far >> 16).astype(np.uint8).tobytes(),
        near_high=(near >> 8).astype(np.uint8).tobytes(),
        near_low=near.astype(np.uint8).tobytes(),
    )
    return len(near), sections


def section_bytes(count: int, num_near: int) -> tuple[int, int, int, int, int]:
    """The lengths of the sections of so many numbers."""
    num_far = count - num_near
    return ((count + 7) // 8 if num_near else 0, num_far, 3 * num_far, num_near, num_near)


def join(sections: Sections, count: int, num_near: int) -> npt.NDArray[np.float32]:
    """The inverse of split; each section has its length. Raises: CorruptFrame if the bits tell another number."""
    num_far = count - num_near
    heads = np.frombuffer(sections.heads, np.uint8)
    low = np.frombuffer(sections.mantissas, np.uint16, num_far)
    high = np.frombuffer(sections.mantissas, np.uint8, num_far, 2 * num_far)
    far = _far_bits(heads, high, low)
    if not num_near:
        return far.view(np.float32)
    is_near = np.unpackbits(np.frombuffer(sections.near, np.uint8), count=count, bitorder="little").view(np.bool_)
    near_at = np.flatnonzero(is_near)
    if len(near_at) != num_near:
        raise CorruptFrame(f"{len(near_at)} bits say that a log-probability is near 0, but {num_near} are")
    near = np.frombuffer(sections.near_high, np.uint8).astype(np.uint16)
    near <<= 8
    near |= np.frombuffer(sections.near_low, np.uint8)
    bits = np.empty(count, np.uint32)
    bits[np.flatnonzero(~is_near)] = far
    bits[near_at] = near_bits().take(near)
    return bits.view(np.float32)


def _far_bits(
    heads: npt.NDArray[np.uint8], high: npt.NDArray[np.uint8], low: npt.NDArray[np.uint16]
) -> npt.NDArray[np.uint32]:
    top = heads.astype(np.uint16)
    top <<= 8
    top |= high
    bits = top.astype(np.uint32)
    bits <<= 16
    bits |= low
    return bits


def _find_near(
    logprobs: npt.NDArray[np.float32], bits: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which numbers are on the list, and where on it."""
    listed = near_bits()
    steps = listed.view(np.float32)
    is_near = (logprobs <= 0) & (logprobs >= steps[-1])
    places = np.searchsorted(-steps, -logprobs[is_near])  # within the list: the last step is below none of them
    on_list = listed[places] == bits[is_near]
    is_near[is_near] = on_list
    return is_near, places[on_list]
