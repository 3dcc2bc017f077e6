"""Compiles the decoder of weights before the first delta comes.

On a machine's first run compilation takes seconds of one core, for which the first version would have to wait; later
runs find the result on disk. So a worker decodes deltas that it makes itself while its bundle is on its way. The sizes
cover few and many elements, because the codec writes their positions with different loops, and few and many changes.
"""

import numpy as np

from periplus.codec.weights.decoder import decode
from periplus.codec.weights.encoder import encode
from periplus.values.weight_state import Tensor, WeightState

SIZES = ((1 << 10, 1 << 4), (1 << 20, 1 << 4), (1 << 20, 1 << 15))
"""(elements, changed elements) of each delta; the trainer compiles its encoder with the same sizes."""


def compile_decoder() -> None:
    """Decode one delta of each size. Run it in a thread of its own; it does not block other threads."""
    for num_elements, num_changes in SIZES:
        # Mantissas are scattered so that a general compressor finds no order; else the delta would not be sparse.
        bits = (0x3F80 | (np.arange(num_elements, dtype=np.uint32) * 40503 >> 8 & 0x7F)).astype(np.uint16)
        changed = bits.copy()
        changed[:: num_elements // num_changes] ^= 1
        base = _state(bits)
        decode(base, encode(base, _state(changed)), max_content_bytes=bits.nbytes)


def _state(bits: "np.ndarray[tuple[int], np.dtype[np.uint16]]") -> WeightState:
    return {"w": Tensor("BF16", bits.shape, bits)}
