"""Holds the reward of each sample against what the job's reward functions can give."""

from periplus.errors import CorruptFrame
from periplus.values.trajectory import Trajectory

ROUNDING = 1e-9
"""Relative difference by which a sum of values may lie outside, since its parts are added in another order."""


class RewardBounds:
    """The least and the largest reward that a job's functions can give."""

    def __init__(self, lowest: float, highest: float) -> None:
        self._lowest, self._highest = lowest, highest
        self._slack = ROUNDING * max(1.0, abs(lowest), abs(highest))

    def check(self, trajectory: Trajectory) -> None:
        """Raises: CorruptFrame if the sample's reward is none that the functions give."""
        reward = trajectory.reward
        if reward is not None and not self._lowest - self._slack <= reward <= self._highest + self._slack:
            raise CorruptFrame(
                f"bad reward: {reward:g} of group {trajectory.group} sample {trajectory.sample}, and the job's reward "
                f"functions give from {self._lowest:g} to {self._highest:g} (worker {trajectory.worker_id[:80]!r}); "
                "drop the trajectory"
            )
