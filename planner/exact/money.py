"""Dollars in a linear model: rent and egress of what is chosen, the objective, and a budget."""

from dataclasses import dataclass, field

import numpy as np

from planner.exact.blocks import Blocks
from planner.exact.linear import INFINITE, Floats, Ints, LinearModel
from planner.exact.rows import Counted, Terms, chain
from planner.exact.sites import MeshesAt
from planner.question.goal import Objective
from planner.question.workload import SCORING, Task

_HOUR_S = 3600.0


@dataclass(slots=True, kw_only=True)
class Money:
    """Of one model."""

    data: Blocks
    home: int
    _rent: Terms = field(default_factory=list)
    """Dollars an hour."""
    _egress: Terms = field(default_factory=list)
    """Dollars a step."""
    _back: Terms = field(default_factory=list)
    """Of regions that are sent versions: dollars of all of a step's samples home."""

    @property
    def counts(self) -> bool:
        """Whether dollars matter at all."""
        return self.data.prices.problem.goal.counts_usd

    def add_meshes(self, of: MeshesAt, at: Ints) -> None:
        if not self.counts:
            return
        block, ways, rows = of.block, self.data.ways(self.home), of.rows
        regions = block.regions[rows]
        scores = any(task in SCORING for task in block.tasks)
        sent = ways.usd_there + ways.usd_back if scores else ways.usd_there
        usd = block.usd_per_step[rows] + sent[regions].max(axis=1)
        if Task.GENERATION in block.tasks:
            makes = block.makes[rows] | self.data.prices.problem.rules.demands_regions
            usd = usd + np.where(makes, ways.usd_back[regions], 0.0).max(axis=1)
            if Task.ACTOR_TRAINING not in block.tasks:
                away = np.where(regions != self.home, ways.usd_version[regions], 0.0)
                away[:, 1] = np.where(regions[:, 0] == regions[:, 1], 0.0, away[:, 1])
                usd = usd + away.sum(axis=1)
        self._rent += zip(at.tolist(), block.usd[rows].tolist(), strict=True)
        self._egress += zip(at.tolist(), usd.tolist(), strict=True)

    def add_units(self, model: LinearModel, units: Counted, is_fine: bool) -> None:
        if not self.counts:
            return
        of = units.of
        self._rent += zip(units.at.tolist(), of.block.usd[of.rows].tolist(), strict=True)
        ways = self.data.ways(self.home)
        usd = (ways.usd_there + ways.usd_back)[of.region]
        if of.scores and usd.max() > 0:
            # samples go to where they are scored and back, at the dearest way in use
            scale = float(usd.max())
            steps = chain(self.data, model, units, usd, scale, is_fine)
            self._egress += ((x, rise * scale) for x, rise in steps)

    def add_critic(self, at: Ints, usd: Floats, regions: Ints) -> None:
        """The critic's weights, where it scores apart from its training; `regions`: [variables, 2] where each of them
        does, `usd`: [regions] of a version."""
        if self.counts:
            sent = usd[regions[:, 0]] + np.where(regions[:, 0] == regions[:, 1], 0.0, usd[regions[:, 1]])
            self._egress += zip(at.tolist(), sent.tolist(), strict=True)

    def add_receiver(self, used: int, region: int) -> None:
        """Of a region that generates, by its binary."""
        if self.counts:
            ways = self.data.ways(self.home)
            self._egress.append((used, float(ways.usd_version[region])))
            self._back.append((used, float(ways.usd_back[region])))

    def add_dearest(self, model: LinearModel) -> None:
        """Samples home at the dearest way among the regions that generate."""
        if any(usd for _, usd in self._back):
            dearest = model.variable()
            for u, usd in self._back:
                model.row([(dearest, 1.0), (u, -usd)], low=0.0)
            self._egress.append((dearest, 1.0))

    def add_objective(
        self, model: LinearModel, step: int, ends_s: tuple[float, float], scale_s: float, most_usd: float
    ) -> None:
        """`ends_s`: of steps that the part has."""
        goal = self.data.prices.problem.goal
        low, high = ends_s
        if goal.objective is Objective.COST_AT_THROUGHPUT:
            usd = model.variable(0.0, min(most_usd, goal.planned_usd_per_hour or INFINITE))
            per_step = _HOUR_S / (goal.max_step_s or high)
            model.row([*self._rent, *((x, v * per_step) for x, v in self._egress), (usd, -1.0)], high=0.0)
            model.cost[usd] = 1.0
            return
        model.cost[step] = 1.0
        most = goal.planned_usd_per_hour
        if most is None:
            return
        model.row(self._rent, high=most)
        egress = [(x, _HOUR_S * v) for x, v in self._egress]
        # step x (most - rent) >= 3600 egress, relaxed from both ends of the part's range of steps
        model.row([*((x, high * v) for x, v in self._rent), *egress], high=high * most)
        model.row([*((x, low * v) for x, v in self._rent), *egress, (step, -most * scale_s)], high=0.0)
