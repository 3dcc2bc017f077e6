"""The decoder of weights, compiled before the first delta comes.

On a machine's first run compiling takes seconds of a core, which the first version would wait for; later runs find what
was compiled on disk. So a worker decodes deltas of its own making while its bundle is on its way: of few elements and
of many, whose positions are coded by other loops, and of few changes and of many.
"""

import numpy as np

from periplus.codec.weights.decoder import decode
from periplus.codec.weights.encoder import encode
from periplus.values.weight_state import Tensor, WeightState

SIZES = ((1 << 10, 1 << 4), (1 << 20, 1 << 4), (1 << 20, 1 << 15))
"""(elements, changes), as the trainer compiles its encoder with."""


def compile_decoder() -> None:
    """Decode each, in a thread of its own: other threads may work meanwhile."""
    for num_elements, num_changes in SIZES:
        # The mantissas stand in no order that a general compressor sees, or the deltas would not be sparse.
        bits = (0x3F80 | (np.arange(num_elements, dtype=np.uint32) * 40503 >> 8 & 0x7F)).astype(np.uint16)
        changed = bits.copy()
        changed[:: num_elements // num_changes] ^= 1
        base = _state(bits)
        decode(base, encode(base, _state(changed)), max_content_bytes=bits.nbytes)


def _state(bits: "np.ndarray[tuple[int], np.dtype[np.uint16]]") -> WeightState:
    return {"w": Tensor("BF16", bits.shape, bits)}
