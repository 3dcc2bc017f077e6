"""What a played placement did: figures over the measured steps, and a bounded record of who was busy when."""

from dataclasses import dataclass

from planner.question.workload import Task

MAX_SPANS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One bar of a picture of steps."""

    region: str
    place: str
    """Of a pool: its class and the unit's number; of a link: `SRC>DST`."""
    what: str
    """A task, or `weights`."""
    begin_s: float
    end_s: float
    step: int
    """Whose batch is scored or trained; for generation and weights, the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """One directed link, a step."""

    src_region: str
    dst_region: str
    num_bytes: float
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSeen:
    """Means over the measured steps; the counterpart of `planner.answer.evaluation.RegionTimes`."""

    region: str
    weights_s: float
    """From the end of a training step until the version is in the region's engines."""
    group_p99_s: float
    """From a group's lease to its last token; `group_mean_s` likewise."""
    group_mean_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Means are over the steps after the warm-up."""

    step_s: float
    """Seconds between two versions; infinite where the run came to a stand, or no step was played."""
    steps_s: tuple[float, ...]
    samples_per_s: float
    task_busy_s: tuple[tuple[Task, float], ...]
    """Seconds a step in which the task's devices worked on it, on average over its replicas; training: the mesh's."""
    links: tuple[LinkUse, ...]
    regions: tuple[RegionSeen, ...]
    tokens_by_age: tuple[int, ...]
    """Completion tokens trained on, by versions between sampling and training."""
    hold_s: float
    """Seconds a step in which a batch lay ready and could not be taken, because of what it would have left behind."""
    units_lost: int
    samples_lost: int
    """Begun anew, because their devices vanished."""
    samples_put_back: float
    """A step: sequences that full caches put back, to read their tokens again."""
    spans: tuple[Span, ...]
    num_played: int
    """Steps after the warm-up: fewer than were asked for where it came to a stand, or was told to stop."""
    stalled: str = ""
    """Why nothing happens any more."""

    @property
    def max_age(self) -> int:
        return len(self.tokens_by_age) - 1
