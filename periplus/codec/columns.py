"""Columns of fixed-width numbers as byte planes, shared by the trajectory and the weight codec.

Plane k of a column holds the k-th byte of every element. High bytes of small integers repeat, and so do the exponents
of similar floats. Stored next to each other they compress well under zstandard. `Columns` reads decoded content in
order and never reads past its end.
"""

import numpy as np
import numpy.typing as npt

from periplus.errors import CorruptFrame


def planes(elements: npt.NDArray[np.uint8], element_bytes: int) -> bytes:
    """Return the bytes of the elements transposed: all first bytes, then all second bytes, and so on."""
    return elements.reshape(-1, element_bytes).T.tobytes()


def from_planes(data: bytes | memoryview, element_bytes: int) -> npt.NDArray[np.uint8]:
    """Invert `planes`. The result is a new, flat, writable uint8 array."""
    return np.frombuffer(data, np.uint8).reshape(element_bytes, -1).T.flatten()


def column(values: object, dtype: str) -> bytes:
    """Return a column of numbers as byte planes. `dtype` is a numpy dtype, which should be little-endian."""
    array = np.asarray(values, dtype=dtype)
    return planes(np.frombuffer(array.tobytes(), np.uint8), array.itemsize)


class Columns:
    """Reader of columns in the order in which they were written."""

    def __init__(self, content: bytes) -> None:
        self._view = memoryview(content)
        self._at = 0

    def take(self, num_bytes: int) -> memoryview:
        """Return the next `num_bytes` bytes. Raises: CorruptFrame if fewer are left."""
        end = self._at + num_bytes
        if end > len(self._view):
            raise CorruptFrame(f"content ends at byte {len(self._view)}, but a column reaches to {end}")
        taken, self._at = self._view[self._at : end], end
        return taken

    def column(self, count: int, dtype: str) -> npt.NDArray[np.generic]:
        """Return the next column, of `count` numbers of `dtype`. Raises: CorruptFrame if the content ends within it."""
        element_bytes = np.dtype(dtype).itemsize
        return from_planes(self.take(count * element_bytes), element_bytes).view(dtype)

    def end(self) -> None:
        """Check that all content was read. Raises: CorruptFrame if some is left over."""
        if self._at != len(self._view):
            raise CorruptFrame(f"{len(self._view) - self._at} bytes of content follow the last column; expected none")
