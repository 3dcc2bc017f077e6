"""The probe: whether an engine computes with the weights that it holds, asked on prompts that trainer and worker know.

A hash of an engine's tensors says what lies in memory. It cannot say that the forward pass reads that memory: a layer
that was rebound to another tensor, a scale that is applied on the way in and taken back on the way out, a kernel that
was compiled for the version before. Log-probabilities can. The trainer computes them with the weights that it
publishes (rounded, as readers get them), signs them with the version's closing, and each worker compares.

Prompts are token ids drawn from a keyed hash: no text, no tokenizer, the same on every machine and with every version
of numpy. Random ids make every layer answer something that no training made certain, so that a fault has where to show.

Shapes: S sequences, T tokens of each.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from blake3 import blake3

NUM_SEQUENCES = 4
"""On CPU, products of one to three rows take other kernels than larger ones."""

NUM_TOKENS = 16

NUM_LOGPROBS = NUM_SEQUENCES * (NUM_TOKENS - 1)
"""Of each token but a sequence's first."""

PROBE_TOLERANCE_NATS = 1e-4
"""Largest difference of one token's log-probability between the trainer and a sound engine, both in float32.

Measured on Qwen3 of 0.2 and 57 M parameters with the same weights: other numbers of threads, other attention kernels
and float64 differ by up to 5e-6. Faults, on the first: all weights one version old at lr 1e-6 1.3e-4 to 1.9e-4; one
tensor 48 versions old (the median tensor) 8e-5 there and 1e-2 at lr 1e-4; one tensor scaled by 1.001 2e-3. What a norm
behind it undoes, such as a scale of the query projection in Qwen3, is no fault and not seen.
"""

PROBE_TOLERANCE_BF16_NATS = 0.25
"""For an engine that computes in bfloat16: 0.03 to 0.07 was measured on sound ones. It still sees a tensor that is
another one, not one that is a few versions old."""

_CONTEXT = "periplus.probe/1 prompts"


def probe_prompts(seed: int, vocab_size: int) -> npt.NDArray[np.int64]:
    """The prompts of a job. *Shapes*: returns S x T token ids in [0, vocab_size)."""
    if vocab_size < 1:
        raise ValueError(f"vocab_size is {vocab_size}; a model has at least one token")
    key = blake3(seed.to_bytes(8, "little"), derive_key_context=_CONTEXT)
    words = np.frombuffer(key.digest(length=8 * NUM_SEQUENCES * NUM_TOKENS), dtype="<u8")
    ids: npt.NDArray[np.int64] = (words % np.uint64(vocab_size)).astype(np.int64)
    return ids.reshape(NUM_SEQUENCES, NUM_TOKENS)


def max_difference(expected: Sequence[float], found: Sequence[float]) -> float:
    """The largest difference between log-probabilities of the same tokens, in nats; infinite if one is not a number."""
    if len(expected) != len(found):
        return math.inf
    largest = 0.0
    for one, other in zip(expected, found, strict=True):
        distance = abs(one - other)
        largest = max(largest, distance if math.isfinite(distance) else math.inf)
    return largest
