"""The digest of weights that ranks hold by rows, rounded as they are published, without gathering the weights.

A tensor's digest is the Merkle root over the hashes of its blocks of 1 MiB (periplus/values/digest.py). A rank hashes
the blocks that lie in its rows as a whole, and sends 32 bytes for each. Of the blocks at both ends of its rows it sends
the bytes that it has. Rank 0 puts the ends together.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3

from periplus.values.digest import BLOCK_BYTES, DIGEST_BYTES, TensorHasher, digest_of
from trainer.distributed.collectives import Arrays, HostCollectives
from trainer.publishing.local_rows import LocalRows, gather_each

ELEMENT_BYTES = 2
"""Bytes of one bfloat16 element."""

BLOCK_ELEMENTS = BLOCK_BYTES // ELEMENT_BYTES
"""Elements of one block of the digest."""


def rounded_digest(all_rows: Sequence[LocalRows], ranks: HostCollectives) -> bytes | None:
    """Return the digest of the weights rounded to bfloat16 on rank 0, and None on other ranks.

    Every rank calls it with the rows that it owns, of the same tensors in the same order.
    """
    hashers: dict[str, TensorHasher] = {}

    def visit(rows: LocalRows, arrays: Arrays) -> None:
        hasher = hashers.setdefault(rows.name, TensorHasher())
        head, leaves, tail = arrays
        hasher.update(head)
        if leaves.size:
            hasher.add_leaves([leaf.tobytes() for leaf in leaves.reshape(-1, DIGEST_BYTES)])
        hasher.update(tail)

    gather_each(all_rows, ranks, _hashed, visit)
    if ranks.rank:
        return None
    return digest_of((rows.name, "BF16", rows.shape, hashers[rows.name].digest()) for rows in all_rows)


def rounded_words(tensor: torch.Tensor) -> npt.NDArray[np.uint16]:
    """Return the bfloat16 words of a tensor in the host's memory, flat."""
    rounded = tensor.reshape(-1).to(torch.bfloat16).view(torch.int16).cpu()
    words: npt.NDArray[np.uint16] = rounded.numpy().view(np.uint16)
    return words


def _hashed(rows: LocalRows) -> list[npt.NDArray[np.uint8]]:
    # The bytes before the first whole block, the hashes of whole blocks, and the bytes after the last one.
    flat = rows.tensor.reshape(-1)
    first = rows.start * rows.row_elements
    head = min(flat.numel(), -first % BLOCK_ELEMENTS)
    num_blocks = (flat.numel() - head) // BLOCK_ELEMENTS
    tail = head + num_blocks * BLOCK_ELEMENTS
    leaves = b"".join(_leaves(flat[head:tail]))
    return [
        rounded_words(flat[:head]).view(np.uint8),
        np.frombuffer(leaves, np.uint8),
        rounded_words(flat[tail:]).view(np.uint8),
    ]


def _leaves(flat: torch.Tensor) -> Iterator[bytes]:
    for start in range(0, flat.numel(), BLOCK_ELEMENTS):
        yield blake3(rounded_words(flat[start : start + BLOCK_ELEMENTS]).view(np.uint8).data).digest()
