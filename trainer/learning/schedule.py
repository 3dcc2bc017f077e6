"""The learning rate of a step: a linear ramp, then a constant, linear or cosine decay; or a schedule of transformers.

It is a pure function of the step's number. So a trainer that was restored from a checkpoint continues the schedule
without any state of its own.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from math import cos, pi
from typing import Any, assert_never

import torch
from transformers import get_scheduler

from periplus.errors import ConfigError, one_line


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


def scheduled_rate(
    step: int, *, name: str, num_steps: int, peak: float, ramp_steps: int, options: Mapping[str, Any]
) -> float:
    """Return the learning rate of step `step`, counted from 0, by the schedule of transformers of this name.

    Raises: ConfigError if transformers has no such schedule, or refuses the options.
    """
    factor = _factor(name, num_steps, ramp_steps, tuple(sorted(options.items())))
    # transformers counts from a rate of 0, with which a step would change nothing.
    return peak * factor(step + 1 if step < ramp_steps else step)


@cache
def _factor(name: str, num_steps: int, ramp_steps: int, options: tuple[tuple[str, Any], ...]) -> Callable[[int], float]:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)  # its rate is multiplied by the factor
    try:
        schedule: Any = get_scheduler(
            name, optimizer, ramp_steps, num_steps, scheduler_specific_kwargs=dict(options) or None
        )
        factor: Callable[[int], float] = schedule.lr_lambdas[0]
        factor(num_steps)
    except Exception as error:  # the options are a user's, and transformers raises what it likes for them
        raise ConfigError(
            f"optimizer.schedule {name} of transformers refuses optimizer.schedule_options {dict(options)}: "
            f"{one_line(error)}"
        ) from error
    return factor
