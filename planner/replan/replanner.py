"""Re-planner of one running plan: it keeps cost tables and columns, so that only what changed is computed again.

A change is answered within the running plan's grouping and trainer's region. An integer program of few columns
(`columns`, `meshes`, `program`, `branching`) allows at most `MigrationPolicy.max_moved` of the used devices to move. It
minimises the goal's objective plus the cost of moving, spread over the policy's horizon. The answer is taken only if it
beats the running plan by the policy's hysteresis, with the time of moving included, or if the running plan cannot run.

The limit on moves is lifted only if nothing runs within it. Then the candidates are what was prepared for the loss of
the trainer's region, the same program with all meshes of one class and no limit, and at last a search from scratch. The
answer says so (`Replan.is_within_limit`).

`Replan.bound` is a lower bound for the changed fleet, derived from the one that the original search proved
(`certificate`).
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, Outcome, objective_value
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.step.fixed_terms import trainer_region_of
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.method import search
from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.problem.fleet import Fleet, Link
from planner.problem.goal import Problem
from planner.problem.workload import Task
from planner.replan.branching import placements
from planner.replan.certificate import carried
from planner.replan.migration import Migration, MigrationPolicy, migration
from planner.replan.moves import Lost, Move, diff, num_moved, staying
from planner.replan.replan_start import ReplanStart, estimate
from planner.replan.settings import SETTINGS
from planner.replan.stretch import tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """Answer to a change of the fleet: the placement to run from now on, and how it differs from the running one."""

    placement: Placement
    evaluation: Evaluation
    is_kept: bool
    """Whether the placement is the running one, in which free devices replace lost ones."""
    moves: tuple[Move, ...]
    num_moved: int
    """Number of devices that start another use, as `planner.replan.moves` counts them."""
    is_within_limit: bool
    """Whether that number is within `MigrationPolicy.max_moved` of the running plan's devices. If not, nothing within
    it runs."""
    migration: Migration
    gain: float
    """Steps (or steps per dollar) within the policy's horizon, with the time of moving, divided by those of the running
    plan; inf if the running plan cannot run."""
    bound: float | None
    """Lower bound on the objective value of all placements on this fleet. None if nothing is proved."""
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """One candidate with the cost of moving to it."""

    placement: Placement
    evaluation: Evaluation
    migration: Migration
    num_moved: int
    value: float
    """Objective value over the part of the horizon that is left after moving; inf if none is left."""


class Replanner:
    """Re-planner of one running job. It must not be used by several threads at once."""

    def __init__(
        self,
        cost_tables: CostTables,
        incumbent: Placement,
        *,
        now_s: Callable[[], float],
        policy: MigrationPolicy | None = None,
        bound: float | None = None,
    ) -> None:
        """Prepare to re-plan `incumbent`.

        `bound` is a lower bound on the objective value, proved for the problem of `cost_tables`. Raises: ValueError if
        the oracle rejects `incumbent`.
        """
        self.policy = policy or MigrationPolicy()
        self.incumbent = incumbent
        self.contingencies: dict[str, Placement] = {}
        """Placements found in advance, by the trainer's region that is lost."""
        self._now_s = now_s
        self._cost_tables = cost_tables
        # The bound stays with the problem that it was proved for, however often the fleet changes later.
        self._proved = (bound, cost_tables)
        last = evaluate(cost_tables, incumbent)
        if not isinstance(last, Evaluation):
            raise ValueError(f"the oracle rejects the running plan: {last.what}")
        self._last = last
        self._trainer_regions = self._trained_in(incumbent)
        # What can be computed before a change is, since an answer is needed quickly afterwards.
        self._warm()

    @property
    def problem(self) -> Problem:
        """Problem after the last change."""
        return self._cost_tables.problem

    def links_changed(self, links: Mapping[tuple[str, str], Link]) -> Replan:
        """Answer new measurements of some links."""
        fleet = self._cost_tables.problem.fleet
        kept = [link for link in fleet.links if (link.src_region, link.dst_region) not in links]
        return self.fleet_changed(replace(fleet, links=(*kept, *links.values())))

    def fleet_changed(self, fleet: Fleet, lost: Lost | None = None) -> Replan:
        """Answer a change of inventory, links or regions.

        `lost` names used devices that are gone, if that is known. Raises: LookupError if no placement was found that
        runs on what is left.
        """
        began_s = self._now_s()
        has_same_machines = fleet.regions == self.problem.fleet.regions
        self._cost_tables = self._cost_tables.moved_to(replace(self.problem, fleet=fleet))
        # The running plan itself, if it still runs; free devices replace lost ones.
        kept = self._option(self.incumbent, lost)
        if kept is not None:
            self._last = kept.evaluation
        runs = kept if kept is not None and self._is_within_limit(kept) else None
        limit_s = SETTINGS.link_programs_s if has_same_machines and runs is not None else SETTINGS.programs_s
        best = self._best(filter(self._is_within_limit, self._options(self._within_limit(runs, lost, limit_s), lost)))
        # Hysteresis: a change must beat the running plan by a margin.
        if runs is not None and (best is None or best.value * (1 + self.policy.hysteresis) > runs.value):
            best = runs
        if best is None:
            beyond = [*([] if kept is None else [kept]), *self._options(self._beyond_limit(lost), lost)]
            best = self._best([each for each in beyond if self._is_within_limit(each)] or beyond)
        if best is None:
            best = self._best(self._options(self._from_scratch(), lost))
        if best is None:
            raise LookupError("no placement was found on what is left of the fleet")
        return self._answer(best, kept, lost, began_s)

    def prepare(self, *, budget_s: float, seed: int = 0) -> None:
        """Search for a placement that runs if the trainer's region is lost, and keep it."""
        trainer_region = trainer_region_of(self._cost_tables, self.incumbent)
        fleet = self._cost_tables.problem.fleet
        rest = replace(
            fleet,
            regions=tuple(region for region in fleet.regions if region.name != trainer_region),
            links=tuple(link for link in fleet.links if trainer_region not in (link.src_region, link.dst_region)),
        )
        if not rest.regions:
            return
        cost_tables = self._cost_tables.moved_to(replace(self._cost_tables.problem, fleet=rest))
        # At most one placement comes back.
        for placement in self._searched(cost_tables, budget_s, seed):
            self.contingencies[trainer_region] = placement

    def take(self, plan: Replan) -> None:
        """Note that the plan is now the running one."""
        self.incumbent, self._last = plan.placement, plan.evaluation
        self._trainer_regions = self._trained_in(plan.placement)

    def _trained_in(self, plan: Placement) -> tuple[str, ...]:
        """Return the regions in which a plan trains its actor."""
        pools = plan.group_of(Task.ACTOR_TRAINING).pools
        return tuple(dict.fromkeys(self._cost_tables.classes[pool.device_class].region.name for pool in pools))

    # --- candidates

    def _warm(self) -> None:
        """Compute columns and tables, and run the solver once, so that the first change is answered fast."""
        for at in self._cost_tables.classes.values() if self._proved[0] is not None else ():
            deque(tables(self._cost_tables, at), 0)
        deque(self._within_limit(self._option(self.incumbent, None), None, SETTINGS.link_programs_s), 0)

    def _change(self, kept: _Option | None, lost: Lost | None) -> ReplanStart:
        return ReplanStart(
            cost_tables=self._cost_tables,
            running=self.incumbent,
            stays=staying(self.incumbent, lost or {}),
            policy=self.policy,
            value=None if kept is None else kept.value,
            last=self._last,
            trainer_regions=tuple(name for name in self._trainer_regions if name in self._regions),
        )

    def _within_limit(self, kept: _Option | None, lost: Lost | None, limit_s: float) -> Iterator[Placement]:
        """Yield placements that move few devices; with meshes of two pools only if nothing else runs."""
        change = self._change(kept, lost)
        found = self._program_placements(change, change.columns, self._most_moved, limit_s)
        yield from found
        runs = kept is not None or any(isinstance(estimate(self._cost_tables, each), Evaluation) for each in found)
        if not runs and (data := change.two_pool_columns) is not None:
            yield from self._program_placements(change, data, self._most_moved, limit_s)

    def _beyond_limit(self, lost: Lost | None) -> Iterator[Placement]:
        """Yield placements without a limit on moves."""
        yield from (each for name, each in sorted(self.contingencies.items()) if name not in self._regions)
        change = self._change(None, lost)
        yield from self._program_placements(change, change.all_columns, None, SETTINGS.programs_s)

    def _program_placements(
        self, change: ReplanStart, data: ProblemArrays, most_moved: float | None, limit_s: float
    ) -> list[Placement]:
        """Return placements from these columns, for each region in which the running plan trains."""
        found: list[Placement] = []
        for trainer_region in change.trainer_regions:
            found += placements(
                change, data, trainer_region, most_moved, limit_s / len(change.trainer_regions), self._now_s
            )
        return found

    def _from_scratch(self) -> Iterator[Placement]:
        yield from self._searched(self._cost_tables, SETTINGS.search_s, 0)

    def _searched(self, cost_tables: CostTables, budget_s: float, seed: int) -> Iterator[Placement]:
        until_s = self._now_s() + budget_s  # limits the search for a smallest conflict too, which is not used here
        found: Outcome = search(
            cost_tables, seed=seed, budget_s=budget_s, now_s=self._now_s, should_stop=lambda: self._now_s() >= until_s
        )
        if isinstance(found, Found | BudgetExhausted) and found.best is not None:
            yield found.best.placement

    # --- evaluation of options

    @property
    def _regions(self) -> set[str]:
        """Names of the regions that have machines."""
        return {at.region.name for at in self._cost_tables.classes.values()}

    @property
    def _most_moved(self) -> float:
        return self.policy.max_moved * self.incumbent.num_gpus

    def _is_within_limit(self, option: _Option) -> bool:
        return option.num_moved <= self._most_moved

    def _options(self, candidates: Iterator[Placement], lost: Lost | None) -> Iterator[_Option]:
        for placement in candidates:
            if (found := self._option(placement, lost)) is not None:
                yield found

    def _option(self, placement: Placement, lost: Lost | None) -> _Option | None:
        """Return a candidate with its cost of moving. None if the oracle rejects it."""
        evaluation = estimate(self._cost_tables, placement)
        if not isinstance(evaluation, Evaluation):
            return None
        moving = migration(self._cost_tables, self.incumbent, placement, self.policy, lost)
        # While devices move the job stands still, so only this share of the horizon is left to make steps in.
        left = 1.0 - moving.total_s / self.policy.horizon_s
        value = objective_value(self._cost_tables.problem.goal, evaluation)
        return _Option(
            placement=placement,
            evaluation=evaluation,
            migration=moving,
            num_moved=num_moved(self.incumbent, placement, lost),
            value=value / left if left > 0 else INFINITE,
        )

    @staticmethod
    def _best(options: Iterator[_Option] | Sequence[_Option]) -> _Option | None:
        return min(options, key=lambda each: each.value, default=None)

    def _answer(self, best: _Option, kept: _Option | None, lost: Lost | None, began_s: float) -> Replan:
        bound, proved_on = self._proved
        return Replan(
            placement=best.placement,
            evaluation=best.evaluation,
            is_kept=best.placement == self.incumbent,
            moves=diff(self.incumbent, best.placement, lost),
            num_moved=best.num_moved,
            is_within_limit=self._is_within_limit(best),
            migration=best.migration,
            # `kept` is the running plan on the changed fleet; without it the gain has no limit.
            gain=INFINITE if kept is None else kept.value / best.value,
            bound=carried(bound, proved_on, self._cost_tables),
            elapsed_s=self._now_s() - began_s,
        )
