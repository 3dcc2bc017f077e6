"""The trajectories whose results the ledger has, by the handles with which the ledger hands the results back.

The ledger (trainer/ledger) decides about results without their tokens. `HeldTrajectories` makes a result of each
trajectory that came in, remembers the trajectory under the result's handle, and gives it back once: when the result is
refused, consumed, dropped or used in an evaluation. A trajectory that is never taken stays until the trainer ends, so
what is held is bounded by what the ledger has room for.

This is pure bookkeeping and decides nothing.
"""

from collections.abc import Callable
from itertools import count

from periplus.values.trajectory import Trajectory
from trainer.intake.committed import KeptTrajectory
from trainer.ledger.values import Result


class HeldTrajectories:
    """Trajectories on disk whose results the ledger was told of and has not handed back for good."""

    def __init__(self, outcome_of: Callable[[Trajectory], float | None] = lambda trajectory: trajectory.reward) -> None:
        self._outcome_of = outcome_of
        self._handles = count()
        self._kept: dict[int, KeptTrajectory] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def hold(self, kept: KeptTrajectory) -> Result:
        """Remember a trajectory, and return the result by which the ledger knows it. Each call uses a new handle."""
        handle = next(self._handles)
        self._kept[handle] = kept
        t = kept.trajectory
        return Result(
            lease_id=t.lease_id,
            group=t.group,
            sample=t.sample,
            item=t.item,
            purpose=t.purpose,
            worker_id=t.worker_id,
            policies=t.policies,
            num_tokens=len(t.completion_ids),
            outcome=self._outcome_of(t),
            handle=handle,
        )

    def look_up(self, result: Result) -> KeptTrajectory:
        """Return the trajectory of a result, which stays held. Raises: KeyError if it was taken before."""
        return self._kept[result.handle]

    def take(self, result: Result) -> KeptTrajectory:
        """Return the trajectory of a result and forget it. Raises: KeyError if it was taken before."""
        return self._kept.pop(result.handle)
