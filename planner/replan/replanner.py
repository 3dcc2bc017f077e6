"""A plan that runs, kept ready to be changed: columns, constants and the incumbent stay, only what changed is new.

A change is answered in the incumbent's grouping and trainer's region, first with its meshes as they are (nothing that
trains restarts), then with any mesh. The objective of both programs is seconds a step plus what moving costs, spread
over the policy's horizon; so units that the change does not touch stay where they are. The answer is taken only if
its steps within the horizon, less the time that moving takes, beat the incumbent's by the policy's hysteresis, or if
the incumbent cannot run any more. The certificate of the first search does not carry over: `bound` of a re-plan is that
of the incumbent's grouping and region alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, Outcome
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate, trainer_region
from planner.cost.pools import Prices
from planner.exact.blocks import Blocks
from planner.exact.linear import INFINITE
from planner.exact.method import search
from planner.exact.model import Node, Relaxation
from planner.exact.solver import solve_relaxed, solve_whole
from planner.question.fleet import Fleet, Link
from planner.question.goal import Problem
from planner.replan.migration import Migration, Policy, migration, unit_reload_s
from planner.replan.moves import Move, diff

_LIMIT_S = 0.5
"""Of one program."""
_GAP = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """What to do about a change."""

    placement: Placement
    evaluation: Evaluation
    is_kept: bool
    """The incumbent goes on as it is."""
    moves: tuple[Move, ...]
    migration: Migration
    gain: float
    """Steps within the horizon, moving included, over the incumbent's; infinite if that cannot run."""
    elapsed_s: float


class Replanner:
    """Of one job. Not for several threads at once."""

    def __init__(
        self, prices: Prices, incumbent: Placement, *, now_s: Callable[[], float], policy: Policy | None = None
    ) -> None:
        self.policy = policy or Policy()
        self.incumbent = incumbent
        self.contingencies: dict[str, Placement] = {}
        """By the trainer's region that is lost: what runs without it, found beforehand."""
        self._now_s = now_s
        self._prices = prices
        self._data = Blocks(prices, INFINITE, 1)
        self._warm()

    def links_changed(self, links: Mapping[tuple[str, str], Link]) -> Replan:
        """New measurements of some links."""
        fleet = self._prices.problem.fleet
        kept = [link for link in fleet.links if (link.src_region, link.dst_region) not in links]
        return self.fleet_changed(replace(fleet, links=(*kept, *links.values())))

    def fleet_changed(self, fleet: Fleet) -> Replan:
        """Other inventory, links or regions."""
        began_s = self._now_s()
        self._move_to(replace(self._prices.problem, fleet=fleet))
        old = self._still_runs()
        options = [each for each in self._candidates() if each != self.incumbent]
        judged = [(each, found) for each in options if isinstance(found := evaluate(self._prices, each), Evaluation)]
        best = max(judged, key=lambda each: self._steps(*each), default=None)
        if best is None and old is None:
            best = self._from_scratch()
        if old is not None and (
            best is None or self._steps(*best) < self._kept_steps(old) * (1 + self.policy.hysteresis)
        ):
            return self._answer(self.incumbent, old, old, began_s)
        if best is None:
            raise LookupError("no placement on what is left of the fleet")
        return self._answer(*best, old, began_s)

    def prepare(self, *, budget_s: float, seed: int = 0) -> None:
        """Find what runs if the trainer's region is lost."""
        home = trainer_region(self._prices, self.incumbent)
        fleet = self._prices.problem.fleet
        rest = replace(
            fleet, regions=tuple(region for region in fleet.regions if region.name != home),
            links=tuple(link for link in fleet.links if home not in (link.src_region, link.dst_region)),
        )  # fmt: skip
        if not rest.regions:
            return
        found: Outcome = search(
            self._prices.moved_to(replace(self._prices.problem, fleet=rest)), seed=seed, budget_s=budget_s,
            now_s=self._now_s,
        )  # fmt: skip
        if isinstance(found, Found | BudgetExhausted) and found.best is not None:
            self.contingencies[home] = found.best.placement

    def take(self, plan: Replan) -> None:
        """The plan is now what runs."""
        self.incumbent = plan.placement

    # --- parts

    def _warm(self) -> None:
        for group in self.incumbent.groups:
            if group.trains:
                self._data.meshes(group.tasks)
            else:
                self._data.units(group.tasks)

    def _move_to(self, problem: Problem) -> None:
        moved = self._prices.moved_to(problem)
        classes = {key: at.num_machines for key, at in moved.classes.items()}
        is_same = classes == {key: at.num_machines for key, at in self._prices.classes.items()}
        self._data = self._data.moved_to(moved) if is_same else Blocks(moved, INFINITE, 1)
        self._prices = moved
        self._warm()

    def _still_runs(self) -> Evaluation | None:
        try:
            found = evaluate(self._prices, self.incumbent)
        except KeyError:
            return None
        return found if isinstance(found, Evaluation) else None

    def _candidates(self) -> list[Placement]:
        found = []
        home_at = self._data.class_at.get(self.incumbent.groups[0].pools[0].device_class)
        actor = next(group for group in self.incumbent.groups if group.trains)
        home_at = self._data.class_at.get(actor.pools[0].device_class, home_at)
        for keeps_meshes in (True, False):
            placement = None if home_at is None else self._solved(int(self._data.class_region[home_at]), keeps_meshes)
            if placement is not None:
                found.append(placement)
                if keeps_meshes and isinstance(evaluate(self._prices, placement), Evaluation):
                    break
        lost = [name for name in self.contingencies if name not in self._data.region_at]
        return found + [self.contingencies[name] for name in lost]

    def _solved(self, home: int, keeps_meshes: bool) -> Placement | None:
        grouping = tuple(group.tasks for group in self.incumbent.groups)
        old = self._still_runs()
        most_s = min(2 * old.step_s, 1e5) if old else 1e5
        built = Relaxation(self._data, Node(grouping=grouping, home=home), most_s, INFINITE)
        if built.is_empty:
            return None
        if old is None:
            first = solve_relaxed(built.model)
            if first.is_infeasible:
                return None
            most_s = max(3 * first.objective * built.scale_s, 1e-6)
            built = Relaxation(self._data, Node(grouping=grouping, home=home), most_s, INFINITE)
            if built.is_empty:
                return None
        self._price_moves(built, keeps_meshes)
        found = solve_whole(built.model, limit_s=_LIMIT_S, gap=_GAP)
        return None if found.values is None else built.placement(found.values)

    def _price_moves(self, built: Relaxation, keeps_meshes: bool) -> None:
        """What units cost that start, as seconds of a step; meshes are fixed, or free."""
        model, policy = built.model, self.policy
        counts = {
            (group.tasks, pool.device_class, pool.unit_gpus, pool.layouts): pool.num_units
            for group in self.incumbent.groups
            for pool in group.pools
        }
        meshes = [group for group in self.incumbent.groups if group.trains]
        if keeps_meshes:
            for x, group in built.mesh_choices():
                if group not in meshes:
                    model.high[x] = 0.0
        home = trainer_region(self._prices, self.incumbent) if keeps_meshes else self._data.regions[built.node.home]
        for tasks, x, unit, share in built.unit_choices():
            had = counts.get((tasks, unit.device_class, unit.unit_gpus, unit.layouts), 0)
            seconds = unit_reload_s(self._prices, tasks, unit, home, policy) * share
            new = model.variable(0.0, INFINITE, cost=seconds / policy.horizon_s + 1e-6)
            model.row([(new, 1.0), (x, -1.0)], low=-float(had))

    def _steps(self, placement: Placement, evaluation: Evaluation) -> float:
        moving = migration(self._prices, self.incumbent, placement, self.policy)
        return max(0.0, self.policy.horizon_s - moving.total_s) / evaluation.step_s

    def _kept_steps(self, old: Evaluation) -> float:
        return self.policy.horizon_s / old.step_s

    def _from_scratch(self) -> tuple[Placement, Evaluation] | None:
        found = search(self._prices, seed=0, budget_s=1.0, now_s=self._now_s)
        if isinstance(found, Found | BudgetExhausted) and found.best is not None:
            return found.best.placement, found.best.evaluation
        return None

    def _answer(self, placement: Placement, evaluation: Evaluation, old: Evaluation | None, began_s: float) -> Replan:
        gain = self._steps(placement, evaluation) / self._kept_steps(old) if old else float(np.inf)
        return Replan(
            placement=placement, evaluation=evaluation, is_kept=placement == self.incumbent,
            moves=diff(self.incumbent, placement),
            migration=migration(self._prices, self.incumbent, placement, self.policy), gain=gain,
            elapsed_s=self._now_s() - began_s,
        )  # fmt: skip
