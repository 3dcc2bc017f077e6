"""Claim: the cost model predicts the seconds per step that a placement has when it is simulated.

The simulator (`planner.simulate`) runs single engines, meshes and links as discrete events with sampled lengths, and
imports nothing of the cost model. Here both evaluate the same placements of HetRL's 64 GPUs. A *cell* is one of four
networks with PPO or GRPO, synchronous or not, and a model of 4B, 8B or 14B in turn. Valid placements of each cell are
drawn at random. Two sets of them are simulated: the first ones drawn, and as many from the tenth that the cost model
predicts to be fastest.

Each set has Spearman's rank correlation of predicted and simulated seconds per step, mean and worst relative error, and
the bias (predicted over simulated). The best tenth is simulated a second time with other lengths. The rank correlation
of both runs (`ceiling`) shows how much of the distance to 1 is due to chance in a few steps. Before anything is
measured, the simulator is checked on a case in closed form.

The last line is one JSON object, and everything else goes to stderr.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np

from bench import provenance
from bench.planner_cases.baselines.sampling import drawn
from bench.planner_cases.fleets.published import HetrlScenario, hetrl_fleet
from bench.planner_cases.fleets.published_workloads import HETRL_MODELS, hetrl_workload
from planner.answer.evaluation import Evaluation
from planner.answer.placement import Group, Layout, Placement, Pool
from planner.cost.tables.cost_tables import CostTables
from planner.devices.catalogue import architecture, gpu_types
from planner.problem.fleet import Fleet, Machines, Region
from planner.problem.goal import Problem
from planner.problem.workload import Lengths, Task, Workload
from planner.simulate.run_record import Simulated
from planner.simulate.simulator import simulate

MIN_SPEARMAN = 0.95
"""Target: least rank correlation of any cell."""
MAX_MEAN_ERROR = 0.10
"""Target: largest mean of the cells' mean errors."""
BEST_FRACTION = 0.1
"""Share of a cell's valid placements, those that the cost model predicts to be fastest, in the second set."""
OTHER_SEEDS = 1_000_003
"""Difference between a placement's seed and the seed of its second simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One workload on one fleet, and how many placements and steps of it are simulated."""

    scenario: str
    algorithm: str
    is_async: bool
    model: str
    num_plans: int
    num_steps: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.scenario} {self.algorithm} {'async' if self.is_async else 'sync'} {self.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Comparison over one set of placements of a cell."""

    cell: str
    which: str
    num_plans: int
    spearman: float
    mean_error: float
    """Mean error of the predicted seconds per step, relative to the simulated ones."""
    worst_error: float
    bias: float
    """Median of predicted over simulated seconds per step."""
    max_age: int
    simulate_s: float
    """Mean wall time of one simulation."""
    pairs: tuple[tuple[float, float], ...] = ()
    """Predicted and simulated seconds per step of each placement, to four digits; empty in older records."""
    ceiling: float | None = None
    """Rank correlation of two simulations with different lengths, for the best tenth only; None in older records. The
    correlation of predictions may be a little above it, since they have no randomness, and cannot be far above it."""


def problem_of(cell: Cell) -> Problem:
    workload = hetrl_workload(cell.model, cell.algorithm, is_async=cell.is_async).workload
    return Problem(fleet=hetrl_fleet(HetrlScenario(cell.scenario)).fleet, workload=workload)


def compare(cell: Cell) -> list[Compared]:
    """Draw placements of a cell, simulate two sets of them, and compare with the predictions."""
    problem = problem_of(cell)
    rng = np.random.default_rng(cell.seed)
    valid: list[tuple[Placement, Evaluation]] = []
    cost_tables = CostTables(problem)
    for found in drawn(cost_tables, rng, 400 * cell.num_plans):
        valid.append(found)
        if len(valid) == round(cell.num_plans / BEST_FRACTION):
            break
    ranked = sorted(valid, key=lambda found: found[1].step_s)
    best = ranked[: max(2, round(BEST_FRACTION * len(ranked)))]
    return [
        played(cell, "random", cost_tables, valid[: cell.num_plans]),
        played(cell, "best tenth", cost_tables, best[: cell.num_plans], is_twice=True),
    ]


def played(
    cell: Cell,
    which: str,
    cost_tables: CostTables,
    chosen: Sequence[tuple[Placement, Evaluation]],
    *,
    is_twice: bool = False,
) -> Compared:
    """Simulate placements, each with its own seed, and compare the seconds per step with the predicted ones.

    With `is_twice` they are simulated again with other seeds, for the ceiling only.
    """
    began_s = time.monotonic()
    seen = _simulated(cell, cost_tables.problem, chosen, cell.seed)
    took_s = time.monotonic() - began_s
    predicted, simulated = [evaluation.step_s for _, evaluation in chosen], [each.step_s for each in seen]
    ceiling = None
    if is_twice:
        again = _simulated(cell, cost_tables.problem, chosen, cell.seed + OTHER_SEEDS)
        ceiling = spearman(simulated, [each.step_s for each in again])
    ratios = np.array(predicted) / np.array(simulated)
    return Compared(
        cell=cell.name,
        which=which,
        num_plans=len(chosen),
        spearman=spearman(predicted, simulated),
        mean_error=float(np.mean(np.abs(ratios - 1))),
        worst_error=float(np.max(np.abs(ratios - 1))),
        bias=float(np.median(ratios)),
        max_age=max(each.max_age for each in seen),
        simulate_s=took_s / len(chosen),
        pairs=tuple((_short(a), _short(b)) for a, b in zip(predicted, simulated, strict=True)),
        ceiling=ceiling,
    )


def _simulated(
    cell: Cell, problem: Problem, chosen: Sequence[tuple[Placement, Evaluation]], seed: int
) -> list[Simulated]:
    return [
        simulate(
            problem,
            placement,
            seed=seed + i,
            num_steps=cell.num_steps,
            idle=frozenset(evaluation.idle),
            at_most=evaluation.limited,
        )
        for i, (placement, evaluation) in enumerate(chosen)
    ]


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation. Ties share their mean rank."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    order = np.asarray(values)
    below = np.sum(order[:, None] > order[None, :], axis=1)
    equal = np.sum(order[:, None] == order[None, :], axis=1)
    ranks: np.ndarray[tuple[int], np.dtype[np.float64]] = below + (equal - 1) / 2.0
    return ranks


# ---- right before it is measured -------------------------------------------------------------------------------------


def check_simulator() -> None:
    """Check the simulator on one machine with equal lengths and no staleness.

    There a step takes the sum of prefill, decoding, training and loading weights, to 0.1 %. Raises: AssertionError.
    """
    from planner.devices import collective, layer

    arch, gpu = architecture("Qwen3-4B"), gpu_types()["A100-80GB-SXM"]
    fleet = Fleet(
        regions=(
            Region(
                name="here",
                machines=(Machines(gpu=gpu.name, gpus_per_machine=8, num_machines=1),),
                fabric_bytes_per_s=10e9,
            ),
        ),
        links=(),
        gpu_types={gpu.name: gpu},
    )
    equal = Lengths(quantiles=(400.0,))
    tasks = (Task.GENERATION, Task.ACTOR_TRAINING)
    workload = Workload(
        algorithm="grpo",
        models=dict.fromkeys(tasks, arch),
        eta=0,
        prompts_per_step=4,
        group_size=8,
        prompt_tokens=Lengths(quantiles=(128.0,)),
        completion_tokens=equal,
    )
    pool = Pool(
        device_class="here/A100-80GB-SXM/8",
        unit_gpus=4,
        num_units=1,
        layouts=tuple((task, Layout(tensor=4, micro_batch=4)) for task in tasks),
    )
    seen = simulate(
        Problem(fleet=fleet, workload=workload),
        Placement(groups=(Group(tasks=tasks, pools=(pool,)),)),
        seed=0,
        num_steps=3,
    )

    def reduce_s(rows: float) -> float:
        return 2 * collective.machine_all_reduce_s(gpu, payload_bytes=2 * rows * arch.hidden_size, num=4)

    tokens = 4 * 528.0
    forward = layer.forward_s(gpu, arch, tensor=4, tokens=tokens, sequence=528.0)
    backward = layer.backward_s(gpu, arch, tensor=4, tokens=tokens, sequence=528.0)
    head = layer.head_s(gpu, arch, tensor=4, tokens=tokens)
    update = layer.update_s(gpu, params=arch.num_params / 4, bytes_per_param=16)
    train_s = 8 * (arch.num_layers * (forward + backward + 2 * reduce_s(tokens)) + 3 * head) + update
    decode = layer.decode_s(gpu, arch, tensor=4, sequences=32.0, context=128 + 399 / 2) + reduce_s(32)
    decode_s = 400 * (arch.num_layers * decode + layer.head_s(gpu, arch, tensor=4, tokens=32.0))
    prefill = layer.forward_s(gpu, arch, tensor=4, tokens=2048.0, sequence=128.0) + reduce_s(2048)
    prefill_s = 2 * arch.num_layers * prefill
    load_s = 2 * arch.num_params / 4 / (gpu.link_bytes_per_s * gpu.efficiency.link_fraction)
    expected_s = train_s + load_s + decode_s + prefill_s
    assert abs(seen.step_s / expected_s - 1) < 1e-3, f"a step of {seen.step_s} s, where {expected_s} s are right"


# ---- what is run -----------------------------------------------------------------------------------------------------


def cells(*, quick: bool, seed: int, num_plans: int) -> list[Cell]:
    """Return the cells: four networks x two algorithms x synchronous or not, with the models in turn."""
    size = (min(20, num_plans), 4) if quick else (num_plans, 6)
    made: list[Cell] = []
    for i, (scenario, algorithm, is_async) in enumerate(product(HetrlScenario, ("grpo", "ppo"), (False, True))):
        model = HETRL_MODELS[i % len(HETRL_MODELS)]
        made.append(
            Cell(
                scenario=str(scenario),
                algorithm=algorithm,
                is_async=is_async,
                model=model,
                num_plans=size[0],
                num_steps=size[1],
                seed=seed,
            )
        )
    return made[::5] if quick else made


def line_of(row: Compared) -> str:
    ceiling = "" if row.ceiling is None else f" of {row.ceiling:.4f}"
    return (
        f"{row.cell:<48} {row.which:<11} {row.num_plans:>4} rank {row.spearman:.4f}{ceiling}  "
        f"error {row.mean_error:.3f} worst {row.worst_error:.2f}  bias {row.bias:.3f}  {row.simulate_s:.2f} s"
    )


def reach_of(rows: Sequence[Compared]) -> list[dict[str, object]]:
    """Return measured values and targets: the lowest correlation of any cell, and the mean of the mean errors."""
    rank = min(row.spearman for row in rows if row.which == "random")
    best_rank = min(row.spearman for row in rows if row.which == "best tenth")
    error = float(np.mean([row.mean_error for row in rows]))
    return [
        _reach("predicted_vs_simulated_spearman", rank, ">=", MIN_SPEARMAN, rank >= MIN_SPEARMAN),
        _reach("predicted_vs_simulated_spearman_best_tenth", best_rank, ">=", MIN_SPEARMAN, best_rank >= MIN_SPEARMAN),
        _reach("predicted_vs_simulated_mean_error", error, "<=", MAX_MEAN_ERROR, error <= MAX_MEAN_ERROR),
    ]


def _reach(name: str, value: float, op: str, target: float, ok: bool) -> dict[str, object]:
    return {"name": name, "value": round(value, 4), "unit": "fraction", "op": op, "target": target, "ok": ok}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cells and placements, within a minute")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--plans", type=int, default=200, help="placements of each kind in each cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    machine = provenance.machine()
    check_simulator()
    chosen = [
        cell
        for cell in cells(quick=arguments.quick, seed=arguments.seed, num_plans=arguments.plans)
        if arguments.only in cell.name
    ]
    rows: list[Compared] = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for found in pool.map(compare, chosen):
            rows += found
            print("\n".join(line_of(row) for row in found), file=sys.stderr, flush=True)
    reach = reach_of(rows)
    record = {
        "bench": "planner_simulation",
        "commit": provenance.commit(),
        "machine": machine,
        "config": {"quick": arguments.quick, "seed": arguments.seed, "cells": [asdict(cell) for cell in chosen]},
        "results": {"compared": [asdict(row) for row in rows]},
        "reach": reach,
    }
    print(json.dumps(record))
    return 0 if all(row["ok"] for row in reach) else 1


if __name__ == "__main__":
    sys.exit(main())
