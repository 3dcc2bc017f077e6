"""The learning rate of a step: a linear ramp, then a constant, linear or cosine decay.

It is a pure function of the step's number. So a trainer that was restored from a checkpoint continues the schedule
without any state of its own.
"""

from enum import StrEnum
from math import cos, pi
from typing import assert_never


class Decay(StrEnum):
    """Course of the learning rate between the end of the ramp and the last step."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


def learning_rate(
    step: int, *, num_steps: int, peak: float, ramp_steps: int, decay: Decay, floor: float = 0.0
) -> float:
    """Return the learning rate of step `step`, counted from 0, of `num_steps` steps.

    The rate rises linearly to `peak` during the first `ramp_steps` steps. It then follows `decay` towards `floor *
    peak`, which it would reach one step after the last. So the first step's rate is above 0, and the last step's still
    is too: no step is wasted on a rate of 0.
    """
    if step < ramp_steps:
        return peak * (step + 1) / (ramp_steps + 1)
    # Share of the decay that is over: 0 at the end of the ramp, 1 one step after the last.
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
