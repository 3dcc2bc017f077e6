"""Results of a simulated run: figures over the measured steps."""

from dataclasses import dataclass

from planner.problem.workload import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Use of one directed link, per step."""

    src_region: str
    dst_region: str
    num_bytes: float
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRegion:
    """Measured seconds of one region that generates, as means over the measured steps.

    It is the counterpart of `planner.answer.evaluation.RegionTimes`.
    """

    region: str
    weights_s: float
    """Seconds from the end of a training step until the version has arrived in the region."""
    group_p99_s: float
    """99th percentile of the seconds from a group's lease to its last token; `group_mean_s` is the mean."""
    group_mean_s: float
    generation_s: float
    """Seconds per step in which an engine of the region has a sequence, mean over its engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Result of one simulated run. Means are over the steps after the warm-up."""

    step_s: float
    """Seconds between two versions. inf if the run stalled or no step was completed."""
    steps_s: tuple[float, ...]
    """Seconds of each measured step."""
    samples_per_s: float
    task_busy_s: tuple[tuple[Task, float], ...]
    """Seconds per step in which the task's devices worked on it; the mean over replicas, or the seconds of the mesh."""
    links: tuple[LinkUse, ...]
    regions: tuple[MeasuredRegion, ...]
    tokens_by_age: tuple[int, ...]
    """Completion tokens trained on, by the number of versions between sampling and training."""
    hold_s: float
    """Seconds per step in which a whole batch was ready and could not be taken, because older groups would have become
    too stale."""
    units_lost: int
    samples_lost: int
    """Samples that were started again because their devices vanished."""
    samples_put_back: float
    """Sequences per step that full caches put back, and whose tokens were read again."""
    num_played: int
    """Number of measured steps after the warm-up. It is below the requested number if the run stalled or was
    stopped."""
    stalled: str = ""
    """Why no event is left. Empty if the run did not stall."""

    @property
    def max_age(self) -> int:
        """Largest age of a token that was trained on, in versions."""
        return len(self.tokens_by_age) - 1
