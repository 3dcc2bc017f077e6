"""The probe: fixed prompts that show whether an engine computes with the weights that it holds.

A hash of an engine's tensors says what lies in memory. It cannot say that the forward pass reads that memory. A layer
may be bound to another tensor, a scale may be applied on the way in and taken back on the way out, or a kernel may have
been compiled for the version before. Log-probabilities reveal that. The trainer computes them with the weights that it
publishes (rounded, as readers get them), signs them with the version's closing, and each worker compares its own with
them. It judges the mean difference: rounding makes single values differ more than a small fault does, but not the mean.

Prompts are token ids drawn from a keyed hash: no text, no tokenizer, the same on every machine and with every version
of numpy. Random ids lead every layer to outputs of which no training made the model certain, so faults show.

Shapes: S sequences, T tokens of each.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from blake3 import blake3

NUM_SEQUENCES = 8
"""Number of prompts. On CPU, matrix products of one to three rows use other kernels than larger products do."""

NUM_TOKENS = 32
"""Tokens of a prompt. With 8 x 32 tokens the mean difference of a sound bfloat16 engine stays within 15 % of its first
value while the model trains, with 4 x 16 within 40 % (docs/design/0011-engines.md). A closing grows to a kilobyte."""

NUM_LOGPROBS = NUM_SEQUENCES * (NUM_TOKENS - 1)
"""Number of log-probabilities of a probe: one for each token but the first of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDifference:
    """How far an engine's log-probabilities of the probe are from the trainer's, in nats.

    `mean` and `max` are of the differences without sign. `spread` is the standard deviation of the trainer's values.
    """

    mean: float = 0.0
    max: float = 0.0
    spread: float = 0.0

    @property
    def relative(self) -> float:
        """The mean difference as a share of the spread; 0 if nothing differs."""
        return self.mean / self.spread if self.spread > 0 else (math.inf if self.mean else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLimits:
    """Largest differences in nats of a sound engine that computes in one floating-point type.

    An engine's first check may reach `first_factor` times what rounding to bfloat16 makes of the trainer's own values,
    or `first_nats` if that was not measured. It gives the engine's *baseline*, the relative difference of the first
    state that passed. Later checks may reach `factor` times the baseline. Every check may reach `floor_nats`, and no
    single value may differ by more than `max_nats`. Rounding and baseline are shares of the spread, because rounding
    errors grow with the logits, and these with training: while a model of 0.02 M parameters was trained from random
    weights, the mean difference grew by 25 times, and its share of the spread by 2.
    """

    first_nats: float
    first_factor: float
    floor_nats: float
    factor: float
    max_nats: float

    def of(self, baseline: float | None, spread: float, rounding: float | None = None) -> float:
        """Return the limit of the mean in a check whose values have this spread.

        `baseline` is None before there is one. `rounding` is the trainer's own relative difference between bfloat16 and
        float32.
        """
        if baseline is not None:
            return max(self.floor_nats, self.factor * baseline * spread)
        if rounding is None or not self.first_factor:
            return self.first_nats
        return max(self.floor_nats, self.first_factor * rounding * spread)


PROBE_FILE = "probe.json"
"""File of the bundle with `relative_rounding`: how far the trainer's own values in bfloat16 are from those in float32,
as a share of their spread."""

PROBE_LIMITS_FLOAT32 = ProbeLimits(first_nats=1e-5, first_factor=0, floor_nats=1e-5, factor=1.75, max_nats=1e-4)
"""Limits of an engine in float32, like the trainer. Its rounding hardly depends on the model.

Measured on tied Qwen3 models of 0.02, 0.3 and 4.7 M parameters (docs/design/0011-engines.md): sound engines differ by
3e-7 to 9e-7 in the mean from float64; with other numbers of threads and attention kernels by up to 5e-6 in the largest.
A tied head that is one step of lr 1e-6 old differs by 2e-5 to 2e-4 in the mean, and more at any higher rate; the few
elements that such a step changes may show in single values only."""

PROBE_LIMITS_BF16 = ProbeLimits(first_nats=0.05, first_factor=2.5, floor_nats=0.005, factor=1.75, max_nats=math.inf)
"""Limits of an engine that computes in bfloat16, of which the trainer's float32 differs by rounding.

Measured on the same models: sound engines differ by 0.0041 to 0.0055, 0.0066 to 0.0082 and 0.0107 to 0.0136 in the
mean, and by at most 15 % from their own first value while they train at lr 1e-6 to 1e-4. A tied head that is 8 steps of
lr 1e-4 old differs by 0.0123, 0.0165 and 0.0215. vLLM's CPU build, sound: 0.0037; with a stale tied head: 0.014. Sound
engines of 12 and 28 layers differ by 0.058 and 0.084, so the first limit follows the trainer's own rounding. Sound
engines of 8 models with 4 to 28 layers had 0.92 to 1.06 times that (docs/design/0011-engines.md); the factor covers
that the share of the spread may grow by 2 in a training from random weights. `floor_nats` is for a model that is at
first so sure that hardly anything differs. Single values of sound engines differ by up to 0.1, those of the stale head
by 0.066."""

_CONTEXT = "periplus.probe/1 prompts"


def probe_prompts(seed: int, vocab_size: int) -> npt.NDArray[np.int64]:
    """Return the prompts of a job: token ids [S, T] in range(vocab_size)."""
    if vocab_size < 1:
        raise ValueError(f"vocab_size is {vocab_size}; a model has at least one token")
    key = blake3(seed.to_bytes(8, "little"), derive_key_context=_CONTEXT)
    words = np.frombuffer(key.digest(length=8 * NUM_SEQUENCES * NUM_TOKENS), dtype="<u8")
    ids: npt.NDArray[np.int64] = (words % np.uint64(vocab_size)).astype(np.int64)
    return ids.reshape(NUM_SEQUENCES, NUM_TOKENS)


def probe_difference(expected: Sequence[float], found: Sequence[float]) -> ProbeDifference:
    """Return how far the engine's log-probabilities `found` are from the trainer's, of the same tokens.

    Mean and maximum are infinite if the sequences differ in length, or if a difference is not a finite number.
    """
    if not expected and not found:
        return ProbeDifference()
    distances = [abs(one - other) for one, other in zip(expected, found, strict=False)]
    if len(expected) != len(found) or not all(map(math.isfinite, distances)):
        return ProbeDifference(mean=math.inf, max=math.inf)
    return ProbeDifference(
        mean=math.fsum(distances) / len(distances), max=max(distances), spread=statistics.pstdev(expected)
    )
