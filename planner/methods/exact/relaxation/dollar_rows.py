"""Dollars in a linear model: rent, egress, the objective in dollars, and a budget.

`DollarTerms` collects the rent (dollars per hour) and the egress (dollars per step) of everything that the model can
choose. If dollars neither are the objective nor have a limit, nothing is collected. All of it is linear in the binaries
x of meshes and the counts n of units, but for the most expensive route in use, which is a chain of binaries or a
maximum over binaries. Both are exact at integer points; only the critic's egress is counted from its cheapest source.
"""

from dataclasses import dataclass, field

import numpy as np

from planner.methods.exact.program.linear_model import INFINITE, Floats, Ints, LinearModel
from planner.methods.exact.relaxation.row_builders import highest_level
from planner.methods.exact.relaxation.variables import Terms, UnitVariables
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.reachable_candidates import ReachableMeshes
from planner.problem.goal import Objective
from planner.problem.workload import SCORING, Task

_HOUR_S = 3600.0
"""Seconds of an hour."""


@dataclass(slots=True, kw_only=True)
class DollarTerms:
    """Rent in dollars per hour and egress in dollars per step of one model, as linear expressions over its variables.

    rent = sum over meshes m of usd_m x_m + sum over units u of usd_u n_u
    egress = sum over meshes m of egress_m x_m + sum over receiving regions r of version_r b_r
             + samples to and from their most expensive route in use + versions of the critic
    """

    data: ProblemArrays
    trainer_region: int
    """Index of the trainer's region."""
    _rent: Terms = field(default_factory=list)
    """Dollars per hour."""
    _egress: Terms = field(default_factory=list)
    """Dollars per step."""
    _back: Terms = field(default_factory=list)
    """For each binary of a region that receives versions: dollars of sending all samples of a step from there."""

    @property
    def counts(self) -> bool:
        """Whether dollars matter at all."""
        return self.data.cost_tables.problem.goal.counts_usd

    def add_meshes(self, of: ReachableMeshes, at: Ints) -> None:
        """Add rent and egress of the meshes of one group; `at` are their binaries."""
        if not self.counts:
            return
        block, transfers, rows = of.block, self.data.transfers(self.trainer_region), of.rows
        regions = block.regions[rows]
        scores = any(task in SCORING for task in block.tasks)
        sent = transfers.usd_there + transfers.usd_back if scores else transfers.usd_there
        # Gradients between the mesh's regions, and samples to the most distant pool (and back, if they are scored).
        usd = block.usd_per_step[rows] + sent[regions].max(axis=1)
        if Task.GENERATION in block.tasks:
            # A mesh that generates sends samples to the trainer from the regions that make any. It receives versions if
            # it does not train the actor.
            makes = block.makes[rows] | self.data.cost_tables.problem.rules.demands_regions
            usd = usd + np.where(makes, transfers.usd_back[regions], 0.0).max(axis=1)
            if Task.ACTOR_TRAINING not in block.tasks:
                away = np.where(regions != self.trainer_region, transfers.usd_version[regions], 0.0)
                away[:, 1] = np.where(regions[:, 0] == regions[:, 1], 0.0, away[:, 1])
                usd = usd + away.sum(axis=1)
        self._rent += zip(at.tolist(), block.usd[rows].tolist(), strict=True)
        self._egress += zip(at.tolist(), usd.tolist(), strict=True)

    def add_units(self, model: LinearModel, units: UnitVariables, is_fine: bool) -> None:
        """Add rent and egress of the units of one group without training."""
        if not self.counts:
            return
        of = units.of
        self._rent += zip(units.at.tolist(), of.block.usd[of.rows].tolist(), strict=True)
        transfers = self.data.transfers(self.trainer_region)
        usd = (transfers.usd_there + transfers.usd_back)[of.region]
        if of.scores and usd.max() > 0:
            # Samples go to where they are scored and back, counted at the most expensive route in use.
            scale = float(usd.max())
            steps = highest_level(self.data, model, units, usd, scale, is_fine)
            self._egress += ((x, rise * scale) for x, rise in steps)

    def add_critic(self, at: Ints, usd: Floats, regions: Ints) -> None:
        """Add the egress of the critic's weights if another group than its own infers with it.

        `regions` is `[num_variables, 2]`: where each choice infers; `usd` is `[num_regions]` per version.
        """
        if self.counts:
            sent = usd[regions[:, 0]] + np.where(regions[:, 0] == regions[:, 1], 0.0, usd[regions[:, 1]])
            self._egress += zip(at.tolist(), sent.tolist(), strict=True)

    def add_receiver(self, used: int, region: int) -> None:
        """Add the egress of a remote region that generates; `used` is its binary."""
        if self.counts:
            transfers = self.data.transfers(self.trainer_region)
            self._egress.append((used, float(transfers.usd_version[region])))
            self._back.append((used, float(transfers.usd_back[region])))

    def add_most_expensive_route(self, model: LinearModel) -> None:
        """Add the egress E of samples at the most expensive route among the regions r that generate.

            usd_r b_r <= E   for each r, with b_r = 1 if r generates

        Valid, since the cost model counts all samples of a step at the most expensive route in use.
        """
        if any(usd for _, usd in self._back):
            most_expensive = model.variable()
            for u, usd in self._back:
                model.row([(most_expensive, 1.0), (u, -usd)], low=0.0)
            self._egress.append((most_expensive, 1.0))

    def add_objective(
        self, model: LinearModel, step: int, ends_s: tuple[float, float], scale_s: float, most_usd: float
    ) -> None:
        """Add the objective, and the budget M if there is one. `ends_s` is the subproblem's range of tau, [low, high].

        Least dollars: minimise U >= rent + 3600 / deadline x egress, with U at most `most_usd`. Otherwise minimise tau,
        under a budget with

            rent <= M
            high rent + 3600 egress <= high M
            low rent + 3600 egress <= M tau

        A budget says 3600 egress <= tau (M - rent), which is bilinear. The second row is valid because tau <= high and
        M >= rent, the third because tau >= low. Both are exact if low = high.
        """
        goal = self.data.cost_tables.problem.goal
        low, high = ends_s
        if goal.objective is Objective.COST_AT_THROUGHPUT:
            usd = model.variable(0.0, min(most_usd, goal.planned_usd_per_hour or INFINITE))
            # Least dollars: the deadline says how many steps per hour pay egress.
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
        # The bilinear budget, relaxed from both ends of the range of steps.
        model.row([*((x, high * v) for x, v in self._rent), *egress], high=high * most)
        model.row([*((x, low * v) for x, v in self._rent), *egress, (step, -most * scale_s)], high=0.0)
