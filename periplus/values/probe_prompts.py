"""The probe: fixed prompts that show whether an engine computes with the weights that it holds.

A hash of an engine's tensors says what lies in memory. It cannot say that the forward pass reads that memory. A layer
may be bound to another tensor, a scale may be applied on the way in and taken back on the way out, or a kernel may have
been compiled for the version before. Log-probabilities reveal that. The trainer computes them with the weights that it
publishes (rounded, as readers get them), signs them with the version's closing, and each worker compares its own with
them.

Prompts are token ids drawn from a keyed hash: no text, no tokenizer, the same on every machine and with every version
of numpy. Random ids lead every layer to outputs of which no training made the model certain, so faults show.

Shapes: S sequences, T tokens of each.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from blake3 import blake3

NUM_SEQUENCES = 4
"""Number of prompts. On CPU, matrix products of one to three rows use other kernels than larger products do."""

NUM_TOKENS = 16
"""Tokens of a prompt. Chosen by hand."""

NUM_LOGPROBS = NUM_SEQUENCES * (NUM_TOKENS - 1)
"""Number of log-probabilities of a probe: one for each token but the first of a sequence."""

PROBE_TOLERANCE_NATS = 1e-4
"""Largest difference of one token's log-probability between the trainer and a sound engine, both in float32.

Measured on Qwen3 of 0.2 and 57 M parameters. With the same weights, other numbers of threads, other attention kernels
and float64 differ by up to 5e-6. Faults on the first model: all weights one version old at lr 1e-6 gives 1.3e-4 to
1.9e-4; one tensor 48 versions old (the median tensor) gives 8e-5 there and 1e-2 at lr 1e-4; one tensor scaled by 1.001
gives 2e-3. A change that a norm behind it undoes, such as a scale of the query projection in Qwen3, is no fault and is
not seen."""

PROBE_TOLERANCE_BF16_NATS = 0.25
"""The same tolerance for an engine that computes in bfloat16: sound ones differed by 0.03 to 0.07. It still reveals a
tensor that is a different one, but not a tensor that is a few versions old."""

_CONTEXT = "periplus.probe/1 prompts"


def probe_prompts(seed: int, vocab_size: int) -> npt.NDArray[np.int64]:
    """Return the prompts of a job: token ids [S, T] in range(vocab_size)."""
    if vocab_size < 1:
        raise ValueError(f"vocab_size is {vocab_size}; a model has at least one token")
    key = blake3(seed.to_bytes(8, "little"), derive_key_context=_CONTEXT)
    words = np.frombuffer(key.digest(length=8 * NUM_SEQUENCES * NUM_TOKENS), dtype="<u8")
    ids: npt.NDArray[np.int64] = (words % np.uint64(vocab_size)).astype(np.int64)
    return ids.reshape(NUM_SEQUENCES, NUM_TOKENS)


def max_difference(expected: Sequence[float], found: Sequence[float]) -> float:
    """Return the largest difference in nats between log-probabilities of the same tokens.

    It is infinite if the sequences differ in length, or if a difference is not a finite number.
    """
    if len(expected) != len(found):
        return math.inf
    largest = 0.0
    for one, other in zip(expected, found, strict=True):
        distance = abs(one - other)
        largest = max(largest, distance if math.isfinite(distance) else math.inf)
    return largest
