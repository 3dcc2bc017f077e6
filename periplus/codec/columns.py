"""Columns of fixed-width numbers as byte planes: what the trajectory and state codecs share.

A plane holds the k-th byte of every element. High bytes of small integers and exponents of similar floats repeat, so
that zstandard finds them when they stand together. `Columns` walks decoded content and never reads past its end.
"""

import numpy as np
import numpy.typing as npt

from periplus.errors import CorruptFrame


def planes(elements: npt.NDArray[np.uint8], element_bytes: int) -> bytes:
    """The bytes of elements, transposed: all first bytes, then all second bytes..."""
    return elements.reshape(-1, element_bytes).T.tobytes()


def from_planes(data: bytes | memoryview, element_bytes: int) -> npt.NDArray[np.uint8]:
    """The inverse of planes: a fresh, flat, writable array."""
    return np.frombuffer(data, np.uint8).reshape(element_bytes, -1).T.flatten()


def column(values: object, dtype: str) -> bytes:
    """A column of numbers as planes; `dtype` is numpy's, little-endian."""
    array = np.asarray(values, dtype=dtype)
    return planes(np.frombuffer(array.tobytes(), np.uint8), array.itemsize)


class Columns:
    """A reader of columns in the order in which they were written."""

    def __init__(self, content: bytes) -> None:
        self._view = memoryview(content)
        self._at = 0

    def take(self, num_bytes: int) -> memoryview:
        """The next bytes. Raises: CorruptFrame if there are fewer."""
        end = self._at + num_bytes
        if end > len(self._view):
            raise CorruptFrame(f"content ends at byte {len(self._view)}, but a column reaches to {end}")
        taken, self._at = self._view[self._at : end], end
        return taken

    def column(self, count: int, dtype: str) -> npt.NDArray[np.generic]:
        """The next column. Raises: CorruptFrame if the content ends before."""
        element_bytes = np.dtype(dtype).itemsize
        return from_planes(self.take(count * element_bytes), element_bytes).view(dtype)

    def end(self) -> None:
        """Raises: CorruptFrame if content is left over."""
        if self._at != len(self._view):
            raise CorruptFrame(f"{len(self._view) - self._at} bytes of content follow the last column; expected none")
