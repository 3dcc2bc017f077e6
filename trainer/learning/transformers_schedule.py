"""Learning rates by the schedules of transformers, as functions of the step's number.

A trainer that was restored from a checkpoint continues such a schedule without any state of its own.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from transformers import get_scheduler

from periplus.errors import ConfigError, one_line


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
