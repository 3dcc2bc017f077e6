"""Prints what the exact method does on one problem, step by step. `docs/planner-exact.md` explains such an output.

python tools/trace_exact.py FLEET WORKLOAD [--gap 0.01]

It runs the search of `planner.methods.exact.branch_and_bound` itself and reports each of its actions: the candidates,
every subproblem with its lower bound, every model that is solved, every better placement, and the result. It does not
change the search, so the numbers are those of `periplus plan --study --method exact`. It is meant for problems that a
person can follow: a few devices, and two or three tasks.
"""

import argparse
from pathlib import Path

from periplus import clock
from planner.answer.outcome import Incumbent, Infeasible, Outcome
from planner.answer.placement import Group, Pool
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.files.importers.loaders import load_fleet, load_workload
from planner.methods.exact.branch_and_bound import Search, _Part
from planner.methods.exact.program.linear_model import INFINITE, Floats, Solution
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.mesh_lower_bounds import mesh_lower_bounds
from planner.methods.exact.subproblem.remaining_candidates import GroupLowerBounds, Subproblem, least_alone
from planner.problem.goal import STUDY, Problem
from planner.problem.groupings import Grouping, groupings
from planner.problem.workload import TRAINING

_BUDGET_S = 60.0
"""Seconds that the search may take. Chosen by hand; the problems that this is for take less than one."""


class TracedSearch(Search):
    """The search of the exact method, which also prints what it does."""

    def __init__(self, cost_tables: CostTables, gap: float) -> None:
        super().__init__(
            cost_tables=cost_tables,
            gap=gap,
            budget_s=_BUDGET_S,
            now_s=clock.monotonic_s,
            report=lambda _: None,
            should_stop=lambda: False,
        )
        self._numbers: dict[Subproblem, int] = {}
        self._is_rounding = False
        self._is_exploring = False

    def _tell(self, new: Incumbent) -> None:
        super()._tell(new)
        origin = "a rounded relaxation" if self._is_rounding else "an integer program"
        origin = origin if self._is_exploring else "a greedy first placement"
        print(f"    better placement, from {origin}: {new.evaluation.step_s:.4f} s, binding {new.evaluation.binding}")

    def _explore(self, every: tuple[Grouping, ...], most_programs: int | None) -> None:
        self._is_exploring = True
        print(f"search: target {self._target():.4f} s = (1 - {self.gap:g}) x {self._value():.4f} s")
        super()._explore(every, most_programs)

    def _open(self, every: tuple[Grouping, ...]) -> bool:
        is_whole = super()._open(every)
        for part in sorted(self._parts, key=lambda each: each.order):
            is_open = part.bound < self._target()
            print(f"  {self._name(part)}: bound {part.bound:.4f} s{'' if is_open else ', not below the target'}")
            least = GroupLowerBounds()
            for tasks in part.subproblem.grouping:
                of = mesh_lower_bounds if any(task in TRAINING for task in tasks) else least_alone
                least = least.with_other(of(self._data, tasks, part.subproblem.trainer_region))
            text = f"slowest group {least.busy_s:.4f} s, training {least.train_s:.4f} s, scoring {least.score_s:.4f} s"
            print(f"    at least: {text}, generation {least.generation_s:.4f} s")
        return is_whole

    def _name(self, part: _Part) -> str:
        node = part.subproblem
        number = self._numbers.setdefault(node, len(self._numbers) + 1)
        text = f"#{number} {grouping_text(node.grouping)}, trainer in {self._data.regions[node.trainer_region]}"
        whole = Subproblem(grouping=node.grouping, trainer_region=node.trainer_region)
        low, high = node.window_s
        if node.window_s != whole.window_s:
            text += f", window {low:.3f} to {'inf' if high == INFINITE else f'{high:.3f}'} s"
        if node.others_s != whole.others_s or node.levels or node.receivers != whole.receivers:
            text += ", divided in other ways"
        return text

    def _step(self, part: _Part) -> None:
        what = "linear relaxation" if part.is_open else "integer program"
        print(f"  {self._name(part)}: {what if part.is_listed else 'list the meshes'}")
        before = {id(each) for each in self._parts}
        super()._step(part)
        rest = sorted((each for each in self._parts if id(each) not in before), key=lambda each: each.order)
        for each in rest:
            then = "linear relaxation" if each.is_open else "integer program"
            new = "" if each.subproblem == part.subproblem else f"{self._name(each)}: "
            print(f"    queued: {new}bound {each.bound:.4f} s, then its {then}")
        if not rest:
            print("    closed")

    def _solved(self, built: Relaxation, part: _Part) -> Solution:
        found = super()._solved(built, part)
        model = built.model
        meshes, units = (sum(len(each.at) for each in of.values()) for of in (built.meshes, built.units))
        size = f"{meshes} meshes and {units} kinds of units left, step limit {built.most_s:.4f} s; "
        size += f"{model.num_variables} variables, {len(model.row_low)} rows"
        if found.is_infeasible:
            print(f"    {size}: infeasible")
            return found
        print(f"    {size}")
        text = f"    bound {self._in_units(built, found.bound):.4f} s"
        if found.values is not None and built.window is not None:
            low, high = built.window_range_s
            text += f", window {built.window_at(found.values):.3f} in {low:.3f} to {high:.3f} s, "
            text += f"{100 * built.looseness(found.values):.2f} % of the samples not really made"
        print(text)
        if found.values is not None:
            print(f"    point: {point_text(built, found.values)}")
        return found

    def _round(self, built: Relaxation, values: Floats) -> None:
        self._is_rounding = True
        super()._round(built, values)
        self._is_rounding = False


def grouping_text(grouping: Grouping) -> str:
    """Return the groups of tasks, as in `{generation} {actor_training}`."""
    return " ".join("{" + ", ".join(task.value for task in tasks) + "}" for tasks in grouping)


def point_text(built: Relaxation, values: Floats) -> str:
    """Return the meshes and units that a point of a model uses, with how many of each."""
    found = [
        f"{values[at]:.2f} of mesh ({group_text(group)})" for at, group in built.mesh_choices() if values[at] > 0.005
    ]
    for _, at, pool in built.unit_choices():
        if values[at] > 0.005:
            found.append(f"{values[at]:.2f} of unit ({pool_text(pool)})")
    return ", ".join(found)


def group_text(group: Group) -> str:
    """Return the pools of a group."""
    return " + ".join(pool_text(pool) for pool in group.pools)


def pool_text(pool: Pool) -> str:
    """Return a pool with the layout of each of its tasks."""
    layouts = []
    for task, layout in pool.layouts:
        if task in TRAINING:
            text = f"pipeline {layout.pipeline}, sharding {layout.sharding.value}, micro-batch {layout.micro_batch}"
            text += ", recompute" if layout.recompute else ""
        else:
            text = f"tensor {layout.tensor}" + (f", batch {layout.batch}" if layout.batch else "")
        layouts.append(f"{task.value}: {text}")
    return f"{pool.num_units} x {pool.unit_gpus} of {pool.device_class} ({'; '.join(layouts)})"


def print_problem(cost_tables: CostTables) -> None:
    """Print the device classes, the groupings and the candidates of each group."""
    print("device classes:")
    for at in cost_tables.classes.values():
        print(f"  {at.key}: {at.num_machines} machines of {at.gpus_per_machine}, {at.usd_per_gpu_hour} dollars/h each")
    every = groupings(cost_tables.problem)
    print("groupings:", ", ".join(grouping_text(each) for each in every))
    print("candidates of each group, if it had the whole fleet:")
    data = ProblemArrays(cost_tables, INFINITE, 2)
    for tasks in dict.fromkeys(tasks for grouping in every for tasks in grouping):
        name = grouping_text((tasks,))
        if any(task in TRAINING for task in tasks):
            meshes = data.meshes(tasks)
            best, two = int(meshes.busy_s.argmin()), int((meshes.at_class[:, 1] >= 0).sum())
            print(f"  {name}: {len(meshes.columns) - two} meshes of one pool, {two} of two; the fastest:")
            print(f"    {meshes.busy_s[best]:.4f} s: {group_text(meshes.columns[best].group)}")
        else:
            units = data.units(tasks)
            print(f"  {name}: {len(units.columns)} kinds of units")
            for most, unit in zip(units.most.tolist(), units.columns, strict=True):
                rates = ", ".join(f"{rate:.3f}" for rate in unit.rates.values())
                print(f"    up to {most:.0f} of {pool_text(unit.unit)}: {rates} samples/s each")


def print_outcome(cost_tables: CostTables, outcome: Outcome) -> None:
    """Print the best placement with its evaluation, and what was proved of it."""
    print(f"outcome: {type(outcome).__name__}")
    if isinstance(outcome, Infeasible) or outcome.best is None:
        return
    best = outcome.best
    for group in best.placement.groups:
        print(f"  {grouping_text((group.tasks,))}: {group_text(group)}")
    evaluation = best.evaluation
    busy = ", ".join(f"{task.value} {seconds:.4f} s" for task, seconds in evaluation.task_s)
    print(f"  step {evaluation.step_s:.4f} s, binding {evaluation.binding}; busy {busy}")
    for of in evaluation.regions:
        times = f"weights {of.weights_s:.4f} s, trajectories {of.trajectories_s:.4f} s, window {of.window_s:.4f} s"
        print(f"  generation in {of.region}: {times}")
    assert best.bound is not None
    gap = 1 - best.bound / evaluation.step_s
    print(f"  bound {best.bound:.4f} s, gap {gap:.3%}, after {outcome.num_evaluations} evaluations by the oracle")
    assert evaluate(cost_tables, best.placement) == evaluation


def main() -> None:
    """Search and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("fleet", type=Path)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--gap", type=float, default=0.01, help="relative gap at which the search ends")
    arguments = parser.parse_args()
    problem = Problem(fleet=load_fleet(arguments.fleet), workload=load_workload(arguments.workload), limits=STUDY)
    cost_tables = CostTables(problem)
    print_problem(cost_tables)
    print_outcome(cost_tables, TracedSearch(cost_tables, arguments.gap).run())


if __name__ == "__main__":
    main()
