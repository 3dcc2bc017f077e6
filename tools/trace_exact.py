"""Prints what the exact method does on one problem, step by step. `docs/planner-exact.md` explains such an output.

python tools/trace_exact.py FLEET WORKLOAD [--gap 0.01]

It runs `planner.methods.exact.search` and prints each of its events
(`planner.methods.exact.events`): every node with its lower bound, every model that is solved, every better placement.
The candidates come before and the result after them. The numbers are those of `periplus plan --study --method exact`.
It is meant for problems that a person can follow: a few devices, and two or three tasks.
"""

import argparse
from pathlib import Path
from typing import assert_never

from periplus import clock
from planner.answer.outcome import Infeasible, Outcome
from planner.answer.placement import Group, Pool
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.files.loaders import load_fleet, load_workload
from planner.methods.evaluation_budget import ignore, never
from planner.methods.exact.events import (
    IncumbentImproved,
    ModelSolved,
    NodeSettled,
    NodesOpened,
    NodeTaken,
    SearchEvent,
)
from planner.methods.exact.program.linear_model import INFINITE, Floats
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.search import Search
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.group_lower_bounds import group_lower_bounds
from planner.methods.exact.subproblem.remaining_candidates import Subproblem
from planner.problem.goal import STUDY, Problem
from planner.problem.groupings import Grouping, groupings
from planner.problem.workload import TRAINING

_BUDGET_S = 60.0
"""Seconds that the search may take. Chosen by hand; the problems that this is for take less than one."""


class Printer:
    """Prints the events of one search. It numbers nodes in the order in which it first hears of them."""

    def __init__(self) -> None:
        self._numbers: dict[Subproblem, int] = {}
        self._regions: tuple[str, ...] = ()

    def __call__(self, event: SearchEvent) -> None:
        """Print one event."""
        match event:
            case NodesOpened():
                self._print_opened(event)
            case NodeTaken(node=node):
                print(f"  {self._name(node.subproblem)}: {node.stage}")
            case ModelSolved():
                print_solved(event)
            case IncumbentImproved(incumbent=new, source=source):
                evaluation = new.evaluation
                print(f"    better placement, from {source}: {evaluation.step_s:.4f} s, binding {evaluation.binding}")
            case NodeSettled(node=node, children=children):
                for child in children:
                    is_same = child.subproblem == node.subproblem
                    name = "" if is_same else f"{self._name(child.subproblem)}: "
                    print(f"    queued: {name}bound {child.bound:.4f} s, then its {child.stage}")
                if not children:
                    print("    closed")
            case _:
                assert_never(event)

    def _print_opened(self, event: NodesOpened) -> None:
        self._regions = event.data.regions
        print(f"search: target {event.target:.4f} s = (1 - {event.gap:g}) x {event.value:.4f} s")
        for node in event.nodes:
            name, is_below = self._name(node.subproblem), node.bound < event.target
            print(f"  {name}: bound {node.bound:.4f} s{'' if is_below else ', not below the target'}")
            grouping, region = node.subproblem.grouping, node.subproblem.trainer_region
            least = group_lower_bounds(event.data, grouping, region, is_listed=False)
            text = f"slowest group {least.busy_s:.4f} s, training {least.train_s:.4f} s, scoring {least.score_s:.4f} s"
            print(f"    at least: {text}, generation {least.generation_s:.4f} s")

    def _name(self, subproblem: Subproblem) -> str:
        number = self._numbers.setdefault(subproblem, len(self._numbers) + 1)
        trainer = self._regions[subproblem.trainer_region]
        text = f"#{number} {grouping_text(subproblem.grouping)}, trainer in {trainer}"
        low, high = subproblem.window_s
        if (low, high) != (0.0, INFINITE):
            text += f", window {low:.3f} to {'inf' if high == INFINITE else f'{high:.3f}'} s"
        # What is left besides the window, compared with the same subproblem before any division.
        whole = Subproblem(grouping=subproblem.grouping, trainer_region=subproblem.trainer_region)
        if subproblem.others_s != whole.others_s or subproblem.levels or subproblem.receivers != whole.receivers:
            text += ", divided in other ways"
        return text


def print_solved(event: ModelSolved) -> None:
    """Print the size of a model, the bound that it proves, and its point."""
    built, values = event.relaxation, event.solution.values
    model = built.model
    meshes, units = (sum(len(each.at) for each in of.values()) for of in (built.meshes, built.units))
    size = f"{meshes} meshes and {units} kinds of units left, step limit {built.most_s:.4f} s; "
    size += f"{model.num_variables} variables, {len(model.row_low)} rows"
    if event.solution.is_infeasible:
        print(f"    {size}: infeasible")
        return
    print(f"    {size}")
    text = f"    bound {event.bound:.4f} s"
    if values is not None and built.window is not None:
        low, high = built.window_range_s
        text += f", window {built.window_at(values):.3f} in {low:.3f} to {high:.3f} s, "
        text += f"{100 * built.looseness(values):.2f} % of the samples not really made"
    print(text)
    if values is not None:
        print(f"    point: {point_text(built, values)}")


def grouping_text(grouping: Grouping) -> str:
    """Return the groups of tasks, as in `{generation} {actor_training}`."""
    return " ".join("{" + ", ".join(task.value for task in tasks) + "}" for tasks in grouping)


def point_text(built: Relaxation, values: Floats) -> str:
    """Return the meshes and units that a point of a model uses, with how many of each."""
    found = [
        f"{values[at]:.2f} of mesh ({group_text(group)})" for at, group in built.mesh_choices() if values[at] > 0.005
    ]
    for units in built.units.values():
        for at, row in zip(units.at.tolist(), units.of.rows.tolist(), strict=True):
            if values[at] > 0.005:
                found.append(f"{values[at]:.2f} of unit ({pool_text(units.of.block.columns[row].unit)})")
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
    found = Search(
        cost_tables=cost_tables,
        gap=arguments.gap,
        budget_s=_BUDGET_S,
        now_s=clock.monotonic_s,
        report=ignore,
        should_stop=never,
        observe=Printer(),
    ).run()
    print_outcome(cost_tables, found)


if __name__ == "__main__":
    main()
