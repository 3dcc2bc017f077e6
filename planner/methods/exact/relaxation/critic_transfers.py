"""Transfers of the critic's weights in one subproblem: from where it may be trained to where it may infer.

If the critic infers in another group than the one that trains it, its weights travel in each step. The model does not
know the source region exactly. It counts the least over all sources that the subproblem leaves open, and forbids pairs
of regions whose transfer would take too long.
"""

from dataclasses import dataclass

import numpy as np

from planner.methods.exact.program.linear_model import Bools, Floats, Ints
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.reachable_candidates import ReachableMeshes, ReachableUnits
from planner.methods.exact.subproblem.remaining_candidates import RemainingCandidates


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticTransfers:
    """Transfers of the critic's weights between all pairs of regions that a subproblem leaves open."""

    sources: Ints
    """Regions where the first pool that trains the critic may be, `[num_sources]`."""
    source: Ints
    """Index into `sources` of each row of the training group's block."""
    transfer_s: Floats
    """Seconds of one version, `[num_regions, num_sources]`."""
    near: Bools
    """Whether a version arrives in time for a step within the limit, `[num_regions, num_sources]`."""
    usd: Floats
    """Egress dollars of one version, `[num_regions, num_sources]`."""

    @staticmethod
    def between(
        data: ProblemArrays, trains: ReachableMeshes, scores: ReachableMeshes | ReachableUnits, of: RemainingCandidates
    ) -> "CriticTransfers":
        """Return the transfers between the meshes `trains` and the candidates `scores` that infer with the critic."""
        regions = trains.block.source_region
        sources = np.unique(regions[trains.rows])
        transfers = [[data.critic_s(k, r) for k in sources.tolist()] for r in range(len(data.regions))]
        # [num_regions, num_sources] each.
        transfer_s, link_s = np.moveaxis(np.array(transfers, dtype=np.float64), 2, 0)
        if isinstance(scores, ReachableMeshes):
            score_s = float(scores.score_s.min())
        else:
            score_s = float(scores.level_s.min()) + scores.scoring_s(data.samples)
        # What a path leaves for the transfer beside the least training and scoring.
        left_s = data.ends * of.most_s - of.least.train_s - score_s
        near = (link_s <= of.most_s * (1 + 1e-9)) & (transfer_s <= left_s * (1 + 1e-9) + 1e-9 * of.most_s)
        usd = np.array([[data.critic_usd(k, r) for k in sources.tolist()] for r in range(len(data.regions))])
        return CriticTransfers(
            sources=sources,
            source=np.searchsorted(sources, regions).clip(0, len(sources) - 1),
            transfer_s=transfer_s,
            near=near,
            usd=usd,
        )

    @property
    def is_near(self) -> Bools:
        """Whether a version arrives in time from any source, `[num_regions]`."""
        return np.asarray(self.near.any(axis=1))

    @property
    def least_s(self) -> Floats:
        """Seconds of a version from the nearest source, `[num_regions]`."""
        least: Floats = self.transfer_s.min(axis=1)
        return least

    @property
    def least_usd(self) -> Floats:
        """Egress dollars of a version from the cheapest source, `[num_regions]`."""
        least: Floats = self.usd.min(axis=1)
        return least
