"""Made-up deltas: for scale, for densities that no real series has, and for figures that are known of a simulation.

`simulated`: 4.2 M weights, row-scaled Gaussians of 0.02 rounded to bf16, float32 masters, Adam (0.9, 0.95), white
gradients, a third of the weights with a drift of 0.3 standard deviations, a ramp of 10 steps: step by step, from
masters in the middle of their cells.

`one_step`: any size. Masters lie anywhere in their rounding cells; the update is the rate times what Adam's quotient of
white gradients is in the long run: the momentum's deviation is sqrt((1 - 0.9) / (1 + 0.9)) = 0.23 over a second moment
whose relative deviation is that of a mean over 39 squares.

`stress`: changes at uniformly drawn places, of a relative deviation of 1e-2, as in the published measurement of
NeMo-DCR. More are drawn than asked for, since some round back to what they were.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bench.weight_deltas.states import rounded
from periplus.values.weight_state import Tensor, WeightState

SIGMA = 0.02
ROW = 1024
SIMULATED_ELEMENTS = 4096 * ROW
MOMENTUM, SECOND = 0.9, 0.95
RAMP_STEPS, DRIFT = 10, 0.3
TENSOR_ELEMENTS = 16 << 20
STILL_CHANGED = 0.78
"""The share of values, changed by a relative deviation of 1e-2, whose rounding differs."""

Floats = npt.NDArray[np.float32]


def weights(num_elements: int, rng: np.random.Generator) -> Floats:
    """Rows of ROW weights, each row of a scale of its own."""
    rows = num_elements // ROW
    scale_R1 = (SIGMA * np.exp(0.3 * rng.standard_normal((rows, 1)))).astype(np.float32)
    return (rng.standard_normal((rows, ROW), np.float32) * scale_R1).reshape(-1)


def simulated(
    rate: float, steps: tuple[int, ...], *, num_elements: int = SIMULATED_ELEMENTS, seed: int = 0
) -> dict[int, tuple[WeightState, WeightState]]:
    """What a reader has before and after each of the steps asked for."""
    found, before = {}, None
    for step, state in enumerate(_adam(rate, max(steps), num_elements, seed)):
        if step in steps:
            assert before is not None
            found[step] = before, state
        before = state
    return found


def _adam(rate: float, steps: int, num_elements: int, seed: int) -> Iterator[WeightState]:
    rng = np.random.default_rng(seed)
    master = (rounded(weights(num_elements, rng)).astype(np.uint32) << 16).view(np.float32)
    drift = np.where(rng.random(num_elements) < 1 / 3, DRIFT * rng.choice([-1, 1], num_elements), 0).astype(np.float32)
    mean, square = np.zeros_like(master), np.zeros_like(master)
    yield _state(rounded(master))
    for step in range(1, steps + 1):
        gradient = rng.standard_normal(num_elements, np.float32) + drift
        mean += (1 - MOMENTUM) * (gradient - mean)
        square += (1 - SECOND) * (gradient * gradient - square)
        size = rate * min(1.0, step / RAMP_STEPS) / (1 - MOMENTUM**step)
        master -= size * mean / (np.sqrt(square / (1 - SECOND**step)) + 1e-8)
        yield _state(rounded(master))


def one_step(num_elements: int, rate: float, seed: int = 0) -> tuple[WeightState, WeightState]:
    """Two states one step apart, in tensors of TENSOR_ELEMENTS."""
    rng = np.random.default_rng(seed)
    base, new = [], []
    for start in range(0, num_elements, TENSOR_ELEMENTS):
        old = weights(min(TENSOR_ELEMENTS, num_elements - start), rng)
        momentum = rng.standard_normal(old.size, np.float32) * ((1 - MOMENTUM) / (1 + MOMENTUM)) ** 0.5
        terms = (1 + SECOND) / (1 - SECOND)
        second = rng.standard_gamma(terms / 2, old.size, np.float32) * (2 / terms)
        base.append(rounded(old))
        new.append(rounded(old - np.float32(rate) * momentum / np.sqrt(second)))
    return _state(*base), _state(*new)


def stress(density: float, *, num_elements: int = SIMULATED_ELEMENTS, seed: int = 0) -> tuple[WeightState, WeightState]:
    """So large a share of the weights changed, anywhere."""
    rng = np.random.default_rng(seed)
    old = (rounded(weights(num_elements, rng)).astype(np.uint32) << 16).view(np.float32)
    hit = rng.random(num_elements) < density / STILL_CHANGED
    new = np.where(hit, old * (1 + 1e-2 * rng.standard_normal(num_elements, np.float32)), old).astype(np.float32)
    return _state(rounded(old)), _state(rounded(new))


def _state(*tensors: npt.NDArray[np.uint16]) -> WeightState:
    return {f"layers.{i:02d}.weight": Tensor("BF16", (t.size // ROW, ROW), t) for i, t in enumerate(tensors)}
