"""Digests of weights, defined so that anyone can recompute them. A digest has 32 bytes, which are sent raw.

A tensor's bytes (row-major, little-endian) are cut into blocks of 1 MiB. The last block may be shorter, and an empty
tensor has one empty block.

    leaf           = BLAKE3(block)                                             plain hash mode
    node(l, r)     = BLAKE3 derive_key("periplus.digest/1 node", l || r)       64 bytes in, 32 out
    tensor digest  = root(leaves)
    entry          = BLAKE3 derive_key("periplus.digest/1 tensor", u32 len(name) || name || u32 len(dtype) || dtype
                                       || u32 number of dimensions || u64 each dimension || tensor digest)
    state digest   = root(entries, sorted by the UTF-8 bytes of their names)

All integers are little-endian, name is UTF-8, dtype is the safetensors name (`BF16`). `root` is a Merkle root: it pairs
neighbours level by level, an odd last one moves up unchanged, and the root of one hash is that hash. The root of an
empty state is the derive_key hash of no bytes in the context of entries. BLAKE3's modes separate leaves, nodes and
entries, so that none can be passed off as another, and blocks stay aligned, which a prefix byte would prevent.

A process that holds only whole blocks of a tensor can compute their leaves: block i is bytes [i, i + 1) x 2^20.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from periplus.values.weight_state import Tensor, WeightState

BLOCK_BYTES = 1 << 20
"""Size of a block of a tensor's bytes."""

DIGEST_BYTES = 32
"""Size of a digest."""

_NODE = "periplus.digest/1 node"
_ENTRY = "periplus.digest/1 tensor"


def payload_digest(payload: bytes) -> bytes:
    """Return the digest of opaque bytes: plain BLAKE3."""
    return blake3(payload).digest()


def tensor_digest(tensor: Tensor) -> bytes:
    """Return the digest of a tensor's bytes alone, without dtype and shape."""
    hasher = TensorHasher()
    hasher.update(tensor.data)
    return hasher.digest()


class TensorHasher:
    """Computes the digest of a tensor whose bytes come in order, in pieces of any size, or partly as leaves."""

    def __init__(self) -> None:
        self._leaves: list[bytes] = []
        # The block that is not complete yet, and how many bytes of it were seen.
        self._block = blake3()
        self._filled_bytes = 0

    def update(self, data: npt.NDArray[Any]) -> None:
        """Add the bytes of a flat contiguous array."""
        view = data.view(np.uint8).data
        start = 0
        while start < len(view):
            stop = min(len(view), start + BLOCK_BYTES - self._filled_bytes)
            self._block.update(view[start:stop])
            self._filled_bytes += stop - start
            start = stop
            if self._filled_bytes == BLOCK_BYTES:
                self._leaves.append(self._block.digest())
                self._block, self._filled_bytes = blake3(), 0

    def add_leaves(self, leaves: Sequence[bytes]) -> None:
        """Add whole blocks, given their hashes. What was added before must end with a whole block."""
        assert not self._filled_bytes, "leaves stand for whole blocks"
        self._leaves += leaves

    def digest(self) -> bytes:
        """Return the digest of all that was added."""
        if self._filled_bytes or not self._leaves:
            return root([*self._leaves, self._block.digest()])
        return root(self._leaves)


def state_digest(state: WeightState) -> bytes:
    """Return the digest of the names, dtypes, shapes and bytes of all tensors."""
    return digest_of((name, tensor.dtype, tensor.shape, tensor_digest(tensor)) for name, tensor in state.items())


def digest_of(tensors: Iterable[tuple[str, str, tuple[int, ...], bytes]]) -> bytes:
    """Return the state digest from (name, dtype, shape, tensor digest) of each tensor.

    It serves callers that hold no state in memory.
    """
    entries = [_entry(name.encode(), dtype.encode(), shape, digest) for name, dtype, shape, digest in tensors]
    hashes = [blake3(entry, derive_key_context=_ENTRY).digest() for _, entry in sorted(entries)]
    return root(hashes) if hashes else blake3(b"", derive_key_context=_ENTRY).digest()


def root(hashes: Sequence[bytes]) -> bytes:
    """Return the Merkle root of at least one hash."""
    level = list(hashes)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        odd = level[-1:] if len(level) % 2 else []
        level = [blake3(left + right, derive_key_context=_NODE).digest() for left, right in pairs] + odd
    return level[0]


def _entry(name: bytes, dtype: bytes, shape: tuple[int, ...], digest: bytes) -> tuple[bytes, bytes]:
    layout = struct.pack(
        f"<I{len(name)}sI{len(dtype)}sI{len(shape)}Q", len(name), name, len(dtype), dtype, len(shape), *shape
    )
    return name, layout + digest
