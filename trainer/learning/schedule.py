"""The learning rate of a step: a pure function, so that a restored trainer continues where the schedule was."""

from enum import StrEnum
from math import cos, pi
from typing import assert_never


class Decay(StrEnum):
    """What happens between the end of the ramp and the last step."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


def learning_rate(
    step: int, *, num_steps: int, peak: float, ramp_steps: int, decay: Decay, floor: float = 0.0
) -> float:
    """The rate of step `step` (from 0): a linear ramp to `peak`, then `decay` towards `floor * peak`.

    The first step of a ramp is already above 0, and the last step of a decay still is: no step is spent on nothing.
    """
    if step < ramp_steps:
        return peak * (step + 1) / (ramp_steps + 1)
    done = min(1.0, (step - ramp_steps) / max(1, num_steps - ramp_steps))
    match decay:
        case Decay.CONSTANT:
            return peak
        case Decay.LINEAR:
            return peak * (floor + (1.0 - floor) * (1.0 - done))
        case Decay.COSINE:
            return peak * (floor + (1.0 - floor) * 0.5 * (1.0 + cos(pi * done)))
        case _:
            assert_never(decay)
