"""A trial of CP-SAT over classes for studies of two tasks, beside the exact method. It is not part of the product.

    python -m bench.planner_cases.enumerated.cp_sat --num 12

For one step time tau, whether a placement may be that fast is a small integer problem: one candidate mesh of one pool,
and a number of each candidate unit, so that the samples of their windows are enough and devices fit. CP-SAT decides it,
and bisection over tau gives a lower bound within 0.1 % (uplinks and downlinks are left out, samples are rounded up).
Every placement that is found is judged by the oracle, which gives the upper bound. Where generation takes turns with
training the best mesh is looked up.
"""

import argparse
import json
import time
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from bench.planner_cases import small
from planner.answer.evaluation import Evaluation
from planner.answer.placement import Group, Placement
from planner.cost.candidates.columns import UnitColumn, mesh_list, unit_columns
from planner.cost.candidates.mesh_lists import MeshColumn
from planner.cost.candidates.meshes import MeshTimeLimits
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tables.transfers import trainer_transfers
from planner.cost.tasks.layer_cuts import TENSOR
from planner.cost.tasks.phase_tables import JUMP_TOLERANCE
from planner.methods.exact.method import search as exact
from planner.problem.goal import Objective, Problem
from planner.problem.workload import Task

GENERATED, TRAINED = (Task.GENERATION,), (Task.ACTOR_TRAINING,)
SCALE = 10_000
"""Parts of a sample that are counted."""
STEP = 1.001


@dataclass(slots=True)
class Trial:
    """Bounds of one problem, in seconds."""

    cost_tables: CostTables
    upper: float = np.inf
    lower: float = 0.0
    num_programs: int = 0

    def run(self) -> None:
        tables = self.cost_tables
        turns = min((self._judged((m.group,)) for m in _meshes(tables, (*GENERATED, *TRAINED))), default=np.inf)
        units, meshes = unit_columns(tables, GENERATED), _meshes(tables, TRAINED)
        low = min((sum(mesh.times.values()) for mesh in meshes), default=np.inf)
        high = low
        # Longer steps until one is possible, then bisection between it and the last that is not.
        while high < 1e6 and not self._is_possible(high, units, meshes):
            low, high = high, high * 2
        while high > low * STEP and low < self.upper:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if self._is_possible(middle, units, meshes) else (middle, high)
        self.lower = min(turns, low)

    def _is_possible(self, step_s: float, units: tuple[UnitColumn, ...], meshes: list[MeshColumn]) -> bool:
        self.num_programs += 1
        model = cp_model.CpModel()
        at = self.cost_tables.classes
        counts = [model.new_int_var(0, at[each.unit.device_class].num_units(each.unit.unit_gpus), "") for each in units]
        chosen = [model.new_bool_var("") for _ in meshes]
        model.add_exactly_one(chosen)
        samples = self.cost_tables.problem.workload.samples_per_step * SCALE
        for mesh, is_chosen in zip(meshes, chosen, strict=True):
            made = [int(np.ceil(self._made(step_s, each, mesh) * SCALE)) for each in units]
            model.add(sum(m * n for m, n in zip(made, counts, strict=True)) >= samples).only_enforce_if(is_chosen)
        # Units of at least each size fit, counted in devices (`planner.answer.placement`).
        for key, each in at.items():
            for size in TENSOR:
                held = [
                    unit.unit.unit_gpus * count
                    for unit, count in zip(units, counts, strict=True)
                    if unit.unit.device_class == key and unit.unit.unit_gpus >= size
                ]
                held += [
                    pool.num_gpus * is_chosen
                    for mesh, is_chosen in zip(meshes, chosen, strict=True)
                    for pool in mesh.group.pools
                    if pool.device_class == key and pool.unit_gpus >= size
                ]
                room = each.num_machines * (each.gpus_per_machine // size) * size
                if room:
                    model.add(sum(held) <= room)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = 10.0
        status = solver.solve(model)
        if status == cp_model.INFEASIBLE:
            return False
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            mesh = next(m for m, is_chosen in zip(meshes, chosen, strict=True) if solver.value(is_chosen))
            numbers = [solver.value(count) for count in counts]
            pools = tuple(each.unit.resized(n) for each, n in zip(units, numbers, strict=True) if n)
            self._judged((Group(tasks=GENERATED, pools=pools), mesh.group))
        return True

    def _made(self, step_s: float, unit: UnitColumn, mesh: MeshColumn) -> float:
        """Samples of one unit in a step, at most; 0 where its link carries no version in time, or the mesh is slow."""
        transfer = trainer_transfers(self.cost_tables, mesh.regions[0]).transfers.get(unit.region)
        train_s = sum(mesh.times.values())
        if transfer is None or unit.phase is None or max(transfer.link_s, train_s) > step_s * (1 + 1e-9):
            return 0.0
        eta = self.cost_tables.problem.workload.eta
        window_s = (eta + 1) * step_s - train_s - transfer.weights_s - transfer.trajectories_s
        window_s = max(0.0, window_s) * (1 + JUMP_TOLERANCE)
        if not eta:
            return unit.phase.samples_within(window_s)
        return min(unit.phase.overlapped_samples(window_s, step_s)[0], unit.rates[Task.GENERATION] * step_s)

    def _judged(self, groups: tuple[Group, ...]) -> float:
        found = evaluate(self.cost_tables, Placement(groups=groups))
        value = found.step_s if isinstance(found, Evaluation) else np.inf
        self.upper = min(self.upper, value)
        return value


def _meshes(cost_tables: CostTables, tasks: tuple[Task, ...]) -> list[MeshColumn]:
    return list(mesh_list(cost_tables, tasks, MeshTimeLimits(), blocks=1))


def is_asked(problem: Problem) -> bool:
    """Whether the model covers a problem: two tasks, seconds alone, meshes of one pool, no rules on regions."""
    rules = problem.rules
    is_plain = not rules.demands_regions and rules.max_regions is None and not problem.goal.counts_usd
    is_plain &= problem.goal.objective is Objective.THROUGHPUT and problem.limits.max_train_blocks == 1
    return is_plain and problem.workload.tasks == (*GENERATED, *TRAINED)


def main() -> None:
    """Print a line for each problem of the enumerated kinds that the model covers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num", type=int, default=12)
    args = parser.parse_args()
    for size in (small.ASYNCHRONOUS_CLASSES, small.SYNCHRONOUS_CLASSES, small.ODD_CLASSES):
        asked = [(i, each) for i in range(200) if is_asked(each := small.problem(i, size))][: args.num]
        for number, problem in asked:
            began_s = time.monotonic()
            trial = Trial(CostTables(problem))
            trial.run()
            cp_s, began_s = time.monotonic() - began_s, time.monotonic()
            found = exact(CostTables(problem), seed=0, budget_s=30.0, now_s=time.monotonic)
            best = getattr(found, "best", None)
            row = {
                "case": number,
                "gpus": size.most_gpus,
                "eta": problem.workload.eta,
                "cp_s": round(cp_s, 3),
                "programs": trial.num_programs,
                "cp": trial.upper if trial.upper < np.inf else None,
                "cp_gap": 1 - trial.lower / trial.upper if trial.upper < np.inf else None,
                "exact_s": round(time.monotonic() - began_s, 3),
                "exact": best and best.value(problem.goal),
                "exact_gap": best and best.gap(problem.goal),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
