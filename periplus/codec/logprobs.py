"""Lossless coding of a column of float32 log-probabilities, without arithmetic that differs between machines.

Most bits of such a number are noise: no coder shortens the 23 bits of mantissa. Two things can be saved:

- **Heads.** The top byte (sign and seven bits of the exponent) takes few values, which cost 2 to 3 bits each.
- **Numbers near 0.** A log-softmax in float32 is x - max - log(sum). If the most likely token was sampled, the result
  is -log(sum), and sum = 1 + k / 2^23, because these are the float32 numbers between 1 and 2. A confident model samples
  the most likely token most of the time. So the number is entry k of a fixed list: 16 bits are enough for every number
  above -0.0078, and fewer for those closest to 0. The list is a polynomial in k over IEEE doubles, so it is the same on
  every machine. A number that is not on the list, because an engine rounded its logarithm differently, is stored like
  any other. The coding is therefore lossless however an engine computes logarithms.

A column of S numbers has these sections. N numbers are *near* (on the list), and F = S - N are *far*. A section is
empty if it would hold nothing:

    near        one bit per number, if any is near; packed, lowest bit first
    heads       u8 [F] bits 24-31 of each far number
    mantissas   u16 [F] bits 0-15, then u8 [F] bits 16-23
    near high   u8 [N] k >> 8 of each near number
    near low    u8 [N] k & 255
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from periplus.errors import CorruptFrame

NUM_NEAR = 1 << 16
"""Length of the list of numbers near 0: every k of 16 bits."""

MIN_NEAR_SHARE = 1 / 3
"""Smallest share of near numbers at which the list is used. From this share on it makes a frame at least a seventh
smaller. Decoding then takes half as long again, so a smaller gain is not worth it (measured in
docs/design/0006-trajectories.md)."""


class Sections(NamedTuple):
    """Sections of a column before compression; the module's docstring lists them."""

    near: bytes
    heads: bytes
    mantissas: bytes
    near_high: bytes
    near_low: bytes


@cache
def near_bits() -> npt.NDArray[np.uint32]:
    """Return the list of numbers near 0: bit patterns `[NUM_NEAR]` of -log(1 + k / 2^23) as float32.

    The logarithm is four terms of its series in double precision, so that every machine computes the same list.
    """
    x = np.arange(NUM_NEAR, dtype=np.float64) * 2.0**-23
    logs = x * (1.0 - x * (0.5 - x * (1.0 / 3.0 - x * 0.25)))
    bits = (-logs).astype(np.float32).view(np.uint32)
    bits[0] = 0  # log-softmax gives +0.0
    bits.flags.writeable = False
    return bits


def split(logprobs: npt.NDArray[np.float32]) -> tuple[int, Sections]:
    """Return the number of near log-probabilities and the sections of the column."""
    bits = np.ascontiguousarray(logprobs).view(np.uint32)
    is_near, near = _find_near(logprobs, bits)
    # With too few near numbers, all are stored as far ones.
    if len(near) < MIN_NEAR_SHARE * len(bits):
        is_near, near = np.zeros(len(bits), np.bool_), near[:0]
    # Far numbers are split by bytes: sign and exponent bits are skewed and compress well, the lower 24 bits hardly.
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
    """Return the length in bytes of each section of `count` numbers, of which `num_near` are near."""
    num_far = count - num_near
    return ((count + 7) // 8 if num_near else 0, num_far, 3 * num_far, num_near, num_near)


def join(sections: Sections, count: int, num_near: int) -> npt.NDArray[np.float32]:
    """Invert `split`. Each section must have its expected length.

    Raises: CorruptFrame if the section `near` marks another number of log-probabilities than `num_near`.
    """
    num_far = count - num_near
    heads = np.frombuffer(sections.heads, np.uint8)
    low = np.frombuffer(sections.mantissas, np.uint16, num_far)
    high = np.frombuffer(sections.mantissas, np.uint8, num_far, 2 * num_far)
    far = _far_bits(heads, high, low)
    if not num_near:
        return far.view(np.float32)
    is_near = np.unpackbits(np.frombuffer(sections.near, np.uint8), count=count, bitorder="little").view(np.bool_)
    # [num_near] places of the near numbers in the column.
    near_at = np.flatnonzero(is_near)
    if len(near_at) != num_near:
        raise CorruptFrame(f"{len(near_at)} bits say that a log-probability is near 0, but {num_near} are")
    # Entry k of the list for each near number, then its bit pattern.
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
    """Assemble the bit patterns of the far numbers from their top byte, next byte and low 16 bits."""
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
    """Return which numbers are on the list `[S]`, and the list entry k of each that is `[N]`."""
    listed = near_bits()
    steps = listed.view(np.float32)
    # Only numbers between the last entry and 0 can be on the list. Both are negated, because searchsorted needs rising
    # values.
    is_near = (logprobs <= 0) & (logprobs >= steps[-1])
    places = np.searchsorted(-steps, -logprobs[is_near])  # within the list: the last step is below none of them
    on_list = listed[places] == bits[is_near]
    is_near[is_near] = on_list
    return is_near, places[on_list]
