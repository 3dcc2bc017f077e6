"""A batch of which some samples cannot be produced yields the others.

What an environment or an engine raises says nothing of whose fault it was, so a batch that failed is halved until the
lease that cannot be served stands alone. That changes no sample: randomness is keyed by group, sample and position, and
decode batches have one shape. A sample that was produced and that the trainer would refuse (a reward beyond its limit,
a log-probability that is no number) is found here, where it costs its own lease and nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from periplus.errors import WireError, explained_error
from periplus.values.trajectory import Trajectory, TrajectoryLimits, validate
from rollout_worker.episodes.queue import QueuedLease

WHY_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class FailedLease:
    """This lease yields nothing, here and now."""

    lease: QueuedLease
    why: str


def sample_with_fallback(
    leases: Sequence[QueuedLease], sample: Callable[[Sequence[QueuedLease]], Sequence[Trajectory]]
) -> tuple[tuple[Trajectory, ...], tuple[FailedLease, ...]]:
    """The trajectories in the order of their leases, and the leases that have none."""
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
    """The trajectories that the trainer will accept, and the leases of the others."""
    by_id = {lease.lease_id: lease for lease in leases}
    valid: list[Trajectory] = []
    failed: list[FailedLease] = []
    for trajectory in trajectories:
        try:
            validate(trajectory, limits)
            valid.append(trajectory)
        except WireError as error:
            failed.append(FailedLease(by_id[trajectory.lease_id], str(error)[:WHY_CHARACTERS]))
    return tuple(valid), tuple(failed)
