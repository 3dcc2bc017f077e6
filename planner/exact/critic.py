"""Ways of the critic's weights, from where it may be trained to where it may score."""

from dataclasses import dataclass

import numpy as np

from planner.exact.blocks import Blocks
from planner.exact.choices import Choices
from planner.exact.linear import Bools, Floats, Ints
from planner.exact.sites import MeshesAt, UnitsAt


@dataclass(frozen=True, slots=True, kw_only=True)
class Critic:
    """Of one model."""

    sources: Ints
    """Regions that critic training's first pool may be in."""
    source: Ints
    """Of each row of its block: its place in `sources`."""
    ways_s: Floats
    """[regions, sources]: of a version."""
    near: Bools
    """[regions, sources]: whether it comes in time."""
    usd: Floats
    """[regions, sources]: of a version."""

    @staticmethod
    def between(data: Blocks, trains: MeshesAt, scores: MeshesAt | UnitsAt, of: Choices) -> "Critic":
        homes = trains.block.home
        sources = np.unique(homes[trains.rows])
        ways = [[data.critic_s(k, r) for k in sources.tolist()] for r in range(len(data.regions))]
        ways_s, link_s = np.moveaxis(np.array(ways, dtype=np.float64), 2, 0)
        if isinstance(scores, MeshesAt):
            score_s = float(scores.score_s.min())
        else:
            score_s = float(scores.level_s.min()) + scores.scoring_s(data.samples)
        left_s = data.ends * of.most_s - of.least.train_s - score_s
        near = (link_s <= of.most_s * (1 + 1e-9)) & (ways_s <= left_s * (1 + 1e-9) + 1e-9 * of.most_s)
        usd = np.array([[data.critic_usd(k, r) for k in sources.tolist()] for r in range(len(data.regions))])
        return Critic(
            sources=sources, source=np.searchsorted(sources, homes).clip(0, len(sources) - 1), ways_s=ways_s, near=near,
            usd=usd,
        )  # fmt: skip

    @property
    def is_near(self) -> Bools:
        """[regions]: to any of them."""
        return np.asarray(self.near.any(axis=1))

    @property
    def least_s(self) -> Floats:
        """[regions]: from the nearest."""
        least: Floats = self.ways_s.min(axis=1)
        return least

    @property
    def least_usd(self) -> Floats:
        """[regions]: from the cheapest."""
        least: Floats = self.usd.min(axis=1)
        return least
