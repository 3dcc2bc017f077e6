"""Result of the oracle for one placement: an `Evaluation`, or a `Violation` if a constraint does not hold.

An evaluation gives seconds per step and dollars per hour by term, and names the term that binds.
"""

from dataclasses import dataclass

from planner.problem.workload import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTimes:
    """Seconds that matter in one region that generates."""

    region: str
    weights_s: float
    """Seconds from the end of a training step until the new version is loaded in the region's engines."""
    trajectories_s: float
    """Seconds from the last token of a sample until the trainer's region has the sample."""
    window_s: float
    """Seconds during which samples of one version may be made there, within the eta + 1 steps that staleness allows. If
    generation takes turns with training, it is the seconds of the generation phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Predicted time and cost of a placement that satisfies all constraints."""

    step_s: float
    """Seconds between two consecutive versions: the step time that the objective of throughput minimises."""
    usd_per_hour: float
    """Rent of all devices and egress at this step time. Devices without a price count as free."""
    usd_egress_per_hour: float
    """The part of `usd_per_hour` that is egress."""
    task_s: tuple[tuple[Task, float], ...]
    """Busy seconds per step of each task."""
    regions: tuple[RegionTimes, ...]
    """Seconds of each region that generates."""
    binding: str
    """The term that equals `step_s`, written `kind:subject`: `path:REGION`, `path:critic`, `group:TASK+TASK`,
    `link:SRC>DST`, `up:REGION`, `budget`."""
    idle: tuple[int, ...] = ()
    """Indices of idle pools among the pools of the generating group. They are too slow to be worth waiting for."""
    limited: tuple[tuple[int, float], ...] = ()
    """Pairs of pool index and samples per step, for pools that make less in their window than at their full rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """The first constraint that a placement violates."""

    kind: str
    """One of `shape`, `rules`, `limits`, `inventory`, `memory`, `link`, `budget`, `deadline`."""
    what: str
    """Description of the violation for a person."""
