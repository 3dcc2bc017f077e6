"""What the oracle says of one placement: its time and price by term, and what binds; or why it is none."""

from dataclasses import dataclass

from planner.question.workload import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTimes:
    """Of one region that generates."""

    region: str
    weights_s: float
    """From the end of a training step until the new version is in the region's engines."""
    trajectories_s: float
    """From a sample's last token until the trainer's region has it."""
    window_s: float
    """Within which samples of a version may be made there, of eta + 1 steps; by turns with training: the phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A placement that holds all constraints. `step_s` is what is minimised: seconds between two versions."""

    step_s: float
    usd_per_hour: float
    """Rented devices, and egress at this rate; 0 for devices without a price."""
    usd_egress_per_hour: float
    task_s: tuple[tuple[Task, float], ...]
    """Busy seconds of each task a step."""
    regions: tuple[RegionTimes, ...]
    binding: str
    """What equals `step_s`, as `kind:subject`: `path:REGION`, `path:critic`, `group:TASK+TASK`, `link:SRC>DST`,
    `up:REGION`, `budget`."""
    idle: tuple[int, ...] = ()
    """Places, in the generating group's pools, of those that are too slow to be worth waiting for."""
    limited: tuple[tuple[int, float], ...] = ()
    """Places of pools that make less in their window than at their full rate, and the samples a step that they make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Why a placement is none."""

    kind: str
    """`shape`, `rules`, `limits`, `inventory`, `memory`, `link`, `budget`, `deadline`."""
    what: str
