"""Rows as the pieces of `bench.planner` make them, in the same shapes, with made-up figures."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.planner_cases.cells import Row, Rows, Settings
from bench.planner_cases.hetrl import FAMILIES, HEURISTICS, OURS, PUBLISHED, TIMES_S
from bench.planner_cases.report.records import Run, all_sections

FULL = Settings(data=Path(), quick=False, seed=0)
_STAMP: Row = {"cell_s": 1.0, "peak_gib": 0.5, "commit": "0123456789abcdef", "jobs": 1}


def run(*, quick: bool = False, leave_out: Callable[[str, str], bool] = lambda section, cell: False) -> Run:
    """Return the rows of a whole record, without those that are named as left out."""
    settings = Settings(data=Path(), quick=quick, seed=0)
    sections: dict[str, Rows] = {}
    for name, section in all_sections().items():
        kept = [cell.name for cell in section.cells(settings) if not leave_out(name, cell.name)]
        sections[name] = {cell: _MAKE[name](cell, np.random.default_rng(i)) | _STAMP for i, cell in enumerate(kept)}
    machine: Row = {"cpu": "Abacus 3000", "cpus": 2, "python": "3.11.7", "load_1min_before": 0.1}
    return Run(quick=quick, seed=0, machine=machine, sections={name: rows for name, rows in sections.items() if rows})


def hetrl(cell: str, rng: np.random.Generator) -> Row:
    scenario, model, algorithm, timing = cell.split()
    step_s = 15.0 * float(rng.uniform(0.8, 2.0))
    gap = 0.008 if algorithm == "grpo" else 0.08
    row: Row = {
        "scenario": scenario,
        "model": model,
        "algorithm": algorithm,
        "is_async": timing == "async",
        "step_s": step_s,
        "bound_s": step_s * (1 - gap),
        "gap": gap,
        "first_s": 0.05,
        "one_percent_s": 1.5 if gap < 0.01 else None,
        "wall_s": 30.0,
        "binding": "path:somewhere",
        "beaten": 0,
        "by_time": {
            OURS: _falling(step_s, 0.6, rng),
            **{name: _falling(1.1 * step_s, 2.0, rng) for name in HEURISTICS},
        },
        "simulated_step_s": 1.04 * step_s,
        "simulated_error": 0.038,
    }
    row["by_time"][HEURISTICS[0]]["0.2"] = None if algorithm == "ppo" else 2 * step_s
    for name in FAMILIES:
        ratio = float(rng.uniform(1.05, 5.0)) if (name, model) != ("verl", "Qwen3-14B") else None
        row |= {
            f"{name}_step_s": ratio and ratio * step_s,
            f"{name}_search_s": 4.0,
            f"{name}_is_whole": model != "Qwen3-8B",
            f"{name}_ratio": ratio,
            f"{name}_is_cornered": model == "Qwen3-14B",
            f"{name}_ratio_at_most": ratio and ratio / (1 - gap),
            f"{name}_published": PUBLISHED[scenario].get(f"{timing}_{name}"),
        }
    return row


def _falling(step_s: float, over: float, rng: np.random.Generator) -> dict[str, float | None]:
    return {f"{s:g}": step_s * (1 + over * math.exp(-4 * s) * float(rng.uniform(0.5, 1))) for s in TIMES_S}


def areal_hex(cell: str, rng: np.random.Generator) -> Row:
    model, _, eta, usd, _ = cell.split()
    row: Row = {"model": model, "eta": int(eta), "usd_per_hour": float(usd)}
    for name in ("throughput", "cost"):
        ratio = float(rng.uniform(1.05, 1.6))
        row |= {
            f"{name}_both": 10.0,
            f"{name}_h800": None if eta == "1" else 10 * ratio + 1,
            f"{name}_h20": 10 * ratio,
            f"{name}_gap": 0.01,
            f"{name}_best_alone": "h20",
            f"{name}_search_s": 1.0,
            f"{name}_ratio": ratio,
            f"{name}_ratio_at_most": ratio * 1.01,
            f"{name}_ratio_at_least": ratio * 0.99,
            f"{name}_gpus": 60,
        }
    return row


def speed(cell: str, rng: np.random.Generator) -> Row:
    num_gpus, algorithm, timing = cell.split()
    base_s = float(num_gpus) ** 0.5 / 8 * (4.0 if algorithm == "ppo" else 1.0) * (2.0 if timing == "sync" else 1.0)
    is_proved = base_s < 40
    return {
        "num_gpus": int(num_gpus),
        "regions": 4,
        "algorithm": algorithm,
        "is_async": timing == "async",
        "first_s": 0.1 * float(rng.uniform(0.5, 2)),
        "one_percent_s": base_s if is_proved else None,
        "wall_s": base_s if is_proved else 60.2,
        "step_s": 16.1,
        "gap": 0.01 if is_proved else 0.2,
        "gpus_used": int(num_gpus) // 2,
        "trace": [[0.1, 20.0, None]],
    }


def real(cell: str, rng: np.random.Generator) -> Row:
    row: Row = {"regions": 7, "num_gpus": 400, "throughput_alone_value": 9.0}
    for name in ("throughput", "throughput_alone"):
        row |= {f"{name}_value": 6.0, f"{name}_gap": 0.01, f"{name}_s": 2.5}
    if cell.endswith("19"):
        return row | {"throughput_alone_value": None, "throughput_alone_gap": None}
    saved = float(rng.uniform(0, 0.3))
    row |= {"cost_value": 100 * (1 - saved), "cost_gap": 0.009, "cost_s": 3.0, "speedup": 1.5}
    row |= {"cost_alone_value": 100.0, "cost_alone_gap": 0.2 if cell.endswith("07") else 0.0, "cost_alone_s": 1.0}
    return row | {"usd_per_hour_saved": 100 * saved, "fraction_saved": saved}


def simulation(cell: str, rng: np.random.Generator) -> Row:
    sets = []
    for which, low, high in (("random", 20.0, 900.0), ("best tenth", 20.0, 35.0)):
        predicted = np.exp(rng.uniform(np.log(low), np.log(high), 200))
        simulated = predicted * rng.normal(1.02, 0.04, 200)
        sets.append(
            {
                "cell": cell,
                "which": which,
                "num_plans": 200,
                "spearman": 0.97,
                "mean_error": 0.034,
                "worst_error": 0.12,
                "bias": 0.98,
                "max_age": 1,
                "simulate_s": 0.2,
                "pairs": [[round(float(a), 2), round(float(b), 2)] for a, b in zip(predicted, simulated, strict=True)],
                "ceiling": 0.98 if which == "best tenth" else None,
            }
        )
    return {"compared": sets}


def cost(_cell: str, _rng: np.random.Generator) -> Row:
    kind: Row = {"rows": 495, "mean_error": 0.03, "worst_error": 0.2, "worst": "L4 Llama-70B tp 1", "spearman": 0.99}
    splits = ("in sample", "without the model", "without the device type", "without the silicon")
    by_kind = {split: {"prefill layer": kind, "head and loss": kind} for split in splits}
    by_kind["in sample"] |= {"collective": kind}
    means = {split: {"layers": 0.06, "all": 0.09} for split in splits}
    results = {"times": {"by_kind": by_kind, "means": means}, "memory": {"transformer_layer": kind | {"rows": 13}}}
    figure: Row = {
        "name": "cost_time_error_mean",
        "value": 0.0934,
        "unit": "ratio",
        "op": "<=",
        "target": 0.1,
        "ok": True,
    }
    return {"results": results, "reach": [figure]}


def bruteforce(cell: str, _rng: np.random.Generator) -> Row:
    wrong = [{"number": 7, "best": 1.0, "exact": None, "bound": None, "off": 1.0}] if cell == "devices 25" else []
    return {
        "cases": 25,
        "infeasible": 3,
        "placements": 115175,
        "mismatches": len(wrong),
        "worst": float(bool(wrong)),
        "wrong": wrong,
    }


def oracle(cell: str, rng: np.random.Generator) -> Row:
    num_gpus, timing = cell.split()
    rate = float(rng.uniform(30_000, 150_000))
    return {
        "num_gpus": int(num_gpus),
        "is_async": timing == "async",
        "distinct": 56,
        "pools": 5.8,
        "rows_per_s": rate,
        "placements_per_s": rate / 3,
        "one_by_one_per_s": 1771.5,
    }


def limits(cell: str, rng: np.random.Generator) -> Row:
    def plan(objective: str, limit: Row) -> Row:
        error = float(rng.uniform(-0.02, 0.1))
        return {
            "objective": objective,
            "limit_s": None,
            "limit_usd": None,
            "margin": 0.13,
            "regions": 2,
            "predicted_s": 10.0,
            "simulated_s": 10 * (1 + error),
            "error": error,
            "predicted_usd": 50.0,
            "simulated_usd": 49.9,
            "binding": "path:a",
            "lag_fraction": 0.1,
            "missed": 0,
        } | limit

    plans = [plan("cost", {"limit_s": 11.5}), plan("budget", {"limit_usd": 60.0})]
    none = {"objective": "cost", "limit_s": 9.0, "limit_usd": None, "margin": 0.13, "answer": "infeasible"}
    return {
        "eta": int(cell.rpartition("eta ")[2]) if "eta " in cell else 1,
        "algorithm": "grpo",
        "fastest_s": 9.0,
        "plans": [none, *plans],
        "missed": 0,
        "error_max": max(each["error"] for each in plans),
    }


_MAKE: dict[str, Callable[[str, np.random.Generator], Row]] = {
    "bruteforce": bruteforce,
    "hetrl": hetrl,
    "areal_hex": areal_hex,
    "speed": speed,
    "real": real,
    "oracle": oracle,
    "limits": limits,
    "simulation": simulation,
    "cost": cost,
}
