"""Samples a batch so that leases that cannot be served do not cost the others.

An exception from an environment or an engine does not tell which sample caused it. So a batch that failed is halved
again and again until the lease at fault is alone. That changes no sample, because randomness is keyed by group, sample
and position, and all decode batches have one shape. A sample that was produced but that the trainer would refuse (a
reward beyond its limit, a log-probability that is NaN) is found here too, and only its own lease fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from periplus.errors import WireError, explained_error
from periplus.values.trajectory import Trajectory, TrajectoryLimits, validate
from rollout_worker.episodes.queue import QueuedLease

WHY_CHARACTERS = 500
"""Characters of an error's text that are reported; the rest is cut. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class FailedLease:
    """A lease for which this worker could not produce a sample, and why."""

    lease: QueuedLease
    why: str


def sample_with_fallback(
    leases: Sequence[QueuedLease], sample: Callable[[Sequence[QueuedLease]], Sequence[Trajectory]]
) -> tuple[tuple[Trajectory, ...], tuple[FailedLease, ...]]:
    """Return the trajectories in the order of their leases, and the leases for which `sample` failed."""
    try:
        return tuple(sample(leases)), ()
    except Exception as error:  # the root of foreign code: a person's environment may raise anything
        if len(leases) == 1:
            return (), (FailedLease(leases[0], explained_error(error)[:WHY_CHARACTERS]),)
    middle = len(leases) // 2
    first, failed_first = sample_with_fallback(leases[:middle], sample)
    second, failed_second = sample_with_fallback(leases[middle:], sample)
    return first + second, failed_first + failed_second


def only_valid(
    leases: Sequence[QueuedLease], trajectories: Sequence[Trajectory], limits: TrajectoryLimits
) -> tuple[tuple[Trajectory, ...], tuple[FailedLease, ...]]:
    """Return the trajectories that the trainer will accept, and the leases of the others."""
    by_id = {lease.lease_id: lease for lease in leases}
    valid: list[Trajectory] = []
    failed: list[FailedLease] = []
    for trajectory in trajectories:
        try:
            # The trainer runs the same check, so what passes is not refused there.
            validate(trajectory, limits)
            valid.append(trajectory)
        except WireError as error:
            failed.append(FailedLease(by_id[trajectory.lease_id], str(error)[:WHY_CHARACTERS]))
    return tuple(valid), tuple(failed)
