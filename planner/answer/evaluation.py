"""Result of the oracle for one placement: an `Evaluation`, or a `Violation` if a constraint does not hold.

An evaluation gives seconds per step and dollars per hour by term, and names the term that binds.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PlainSerializer
from pydantic.functional_validators import ValidateAs

from planner.problem.ranges import Name, PerSecond, PoolIndex, Seconds, StepSeconds, UsdPerHour
from planner.problem.workload import Task, in_task_order


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTimes:
    """Seconds that matter in one region that generates."""

    region: Name
    weights_s: Seconds
    """Seconds from the end of a training step until the region has the new version."""
    trajectories_s: Seconds
    """Seconds from the last token of a sample until the trainer's region has the sample."""
    window_s: Seconds
    """Seconds during which samples of one version may be made there, within the eta + 1 steps that staleness allows. If
    generation takes turns with training, it is the seconds of the generation phase."""
    load_s: Seconds = 0.0
    """Seconds from then until its slowest engine has loaded the version."""
    generation_s: Seconds = 0.0
    """Busy seconds per step of one of its units, which generates at its full rate while it is busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Predicted time and cost of a placement that satisfies all constraints."""

    step_s: StepSeconds
    """Seconds between two consecutive versions: the step time that the objective of throughput minimises."""
    usd_per_hour: UsdPerHour
    """Rent of all devices and egress at this step time. Devices without a price count as free."""
    usd_egress_per_hour: UsdPerHour
    """The part of `usd_per_hour` that is egress."""
    task_s: Annotated[
        tuple[tuple[Task, Seconds], ...],
        ValidateAs(dict[Task, Seconds], in_task_order),
        PlainSerializer(dict, return_type=dict[Task, float]),
    ]
    """Busy seconds per step of each task."""
    regions: tuple[RegionTimes, ...]
    """Seconds of each region that generates."""
    binding: Annotated[str, Field(max_length=1000)]
    """The term that equals `step_s`, written `kind:subject`: `path:REGION`, `path:critic`, `group:TASK+TASK`,
    `link:SRC>DST`, `up:REGION`, `budget`."""
    idle: tuple[PoolIndex, ...] = ()
    """Indices of idle pools among the pools of the generating group. They are too slow to be worth waiting for."""
    limited: tuple[tuple[PoolIndex, PerSecond], ...] = ()
    """Pairs of pool index and samples per step, for pools that make less in their window than at their full rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """The first constraint that a placement violates."""

    kind: str
    """One of `shape`, `rules`, `limits`, `inventory`, `memory`, `link`, `budget`, `deadline`."""
    what: str
    """Description of the violation for a person."""
