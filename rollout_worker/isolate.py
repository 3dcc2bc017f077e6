"""A batch of which some samples cannot be produced yields the others.

What an environment or an engine raises says nothing of whose fault it was, so a batch that failed is halved until the
lease that cannot be served stands alone. That changes no sample: randomness is keyed by group, sample and position, and
decode batches have one shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from periplus.errors import explained_error
from periplus.trajectory import Trajectory
from rollout_worker.queue import Lease

WHY_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Failed:
    """This lease yields nothing, here and now."""

    lease: Lease
    why: str


def sample_what_can_be(
    leases: Sequence[Lease], sample: Callable[[Sequence[Lease]], Sequence[Trajectory]]
) -> tuple[tuple[Trajectory, ...], tuple[Failed, ...]]:
    """The trajectories in the order of their leases, and the leases that have none."""
    try:
        return tuple(sample(leases)), ()
    except Exception as error:  # the root of foreign code: a person's environment may raise anything
        if len(leases) == 1:
            return (), (Failed(leases[0], explained_error(error)[:WHY_CHARACTERS]),)
    middle = len(leases) // 2
    first, failed_first = sample_what_can_be(leases[:middle], sample)
    second, failed_second = sample_what_can_be(leases[middle:], sample)
    return first + second, failed_first + failed_second
