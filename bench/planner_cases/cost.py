"""Claim: what the planner predicts of layers is within 10 % of times, and 6 % of memory, that nobody here measured.

The profiles are those of `DATA`/gpu_profiles. The docstrings of `calibration/*_tables.py` say which rows count, and why
others do not. An error is |predicted / measured - 1|. It is averaged over the rows of each kind of time, and then over
kinds. Predictions come from the functions of `planner.devices` that the cost model and the simulator
call. There are these splits:

- In sample: the parameters of a device type (`Efficiency`) are fitted to the same rows. This is for context only.
- Without the model: they are fitted to the rows of the same type for all other models.
- Without the device type (a row of `gpus.csv`): none of its rows are used, in any table. Its parameters are those of
  related types, with its own datasheet.
- Without the silicon: rows of other types with the same chip (A100 of 40 and 80 GB; H100, H200 and GH200; ...) are not
  used either. This split is reported, and counts in no mean.

`cost_time_error_mean` is the mean over the second and third split, and over kinds of *layer* times: prefill, decoding,
dense parts, forward and backward of training, head and loss, optimizer. A plan's time consists of these, and they
include the collectives of tensor parallelism. Single kernels, collectives, and means over all kinds are reported too,
without a target.

`cost_memory_error_mean` is over parameters and activations of transformer layers. Nothing is fitted here: the tensors
that a layer keeps were counted in the source of the profiled program. First and last layers are reported too, and so is
the error for a program whose source is not known, which is assumed to keep what the others keep on average.

`calibration/` (beside this module) fits the parameters. `loaders` reads the profiles, `serving_tables`,
`training_tables` and `kernel_tables` turn them into `observations`. `predict` asks `planner.devices` for the seconds of
an observation, and `fit` fits `parameters` with `robust`. `similar_types` estimates types that nobody profiled from
similar types. `held_out` predicts rows that the fit did not see, `score` summarises errors, and `layer_memory` checks
bytes. With `--table FILE` the fitted efficiencies are written there and nothing is measured: this makes
`planner/data/efficiency.csv`.

`--quick` takes every 16th matrix product and few kinds of attention, and leaves no silicon out. The last line is one
JSON object.
"""

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import provenance
from bench.planner_cases.calibration import held_out, parameters
from bench.planner_cases.calibration.fit import Fit, fit_all
from bench.planner_cases.calibration.held_out import Predicted
from bench.planner_cases.calibration.layer_memory import KEPT, LayerMemory, predicted_bytes
from bench.planner_cases.calibration.loaders import load_memory, load_profiles, load_traits
from bench.planner_cases.calibration.observations import LAYERS, MeasuredTerm, Series
from bench.planner_cases.calibration.score import Score, score
from bench.planner_cases.calibration.similar_types import Traits, completed
from bench.planner_cases.calibration.table import efficiency_rows
from bench.provenance import say
from planner.devices.catalogue import gpu_types

MAX_TIME_ERROR = 0.10
"""Target: largest mean relative error of predicted times."""
MAX_MEMORY_ERROR = 0.06
"""Target: largest mean relative error of predicted memory."""
QUICK_EVERY = 16
"""A quick run takes one in so many rows of single kernels."""
_ATTENTION = frozenset({MeasuredTerm.PREFILL_ATTENTION, MeasuredTerm.DECODE_ATTENTION})
_THINNED = _ATTENTION | {MeasuredTerm.MATMUL}
IN_SAMPLE = "in sample"
WITHOUT_MODEL = "without the model"
WITHOUT_GPU = "without the device type"
WITHOUT_SILICON = "without the silicon"

Row = dict[str, Any]


# ---- times -----------------------------------------------------------------------------------------------------------


def measure_times(series: Sequence[Series], fit: Fit, splits: Sequence[str]) -> Row:
    gpus, traits = gpu_types(), load_traits()
    found = {IN_SAMPLE: list(held_out.in_sample(series, gpus, fit))}
    say("leaving out")
    with ProcessPoolExecutor(max_workers=2) as pool:
        waiting = {split: pool.submit(leave_out, split, series) for split in splits[1:]}
        found |= {split: each.result() for split, each in waiting.items()}
    say("done")
    tables = {split: table_of(predicted) for split, predicted in found.items()}
    for split, table in tables.items():
        print_table(split, table)
    means = {
        split: {"layers": mean_of(table, LAYERS), "all": mean_of(table, MeasuredTerm)}
        for split, table in tables.items()
    }
    return {
        "by_kind": {split: {term: as_row(one) for term, one in table.items()} for split, table in tables.items()},
        "by_gpu": {split: by_gpu(predicted) for split, predicted in found.items()},
        "means": means,
        "numbers": numbers_of(fit, traits),
    }


def leave_out(split: str, series: Sequence[Series]) -> list[Predicted]:
    """Return the predictions of one split. It runs in a process of its own."""
    gpus, traits = gpu_types(), load_traits()
    if split == WITHOUT_MODEL:
        return list(held_out.without_model(series, gpus, traits))
    return list(held_out.without_gpu(series, gpus, traits, by_silicon=split == WITHOUT_SILICON))


def table_of(predicted: Iterable[Predicted]) -> dict[str, Score]:
    """Return the score of each kind of time that was predicted."""
    groups: dict[MeasuredTerm, list[Predicted]] = defaultdict(list)
    for one in predicted:
        groups[one.series.term].append(one)
    return {term.value: _score(groups[term]) for term in MeasuredTerm if term in groups}


def by_gpu(predicted: Iterable[Predicted]) -> dict[str, dict[str, float]]:
    """Return the mean error by device type and kind of time."""
    groups: dict[str, dict[MeasuredTerm, list[Predicted]]] = defaultdict(lambda: defaultdict(list))
    for one in predicted:
        groups[one.series.gpu][one.series.term].append(one)
    return {gpu: {t.value: _score(rows).mean_error for t, rows in of.items()} for gpu, of in sorted(groups.items())}


def _score(predicted: Sequence[Predicted]) -> Score:
    labels = [label for one in predicted for label in _labels(one.series)]
    return score(
        np.concatenate([one.seconds for one in predicted]),
        np.concatenate([one.series.seconds for one in predicted]),
        labels,
    )


def _labels(series: Series) -> Iterator[str]:
    head = " ".join(part for part in (series.gpu, series.model, f"tp {series.tensor}", series.variant) if part)
    for at in range(len(series)):
        yield head + "".join(f" {name} {values[at]:.0f}" for name, values in series.columns.items())


def mean_of(table: Mapping[str, Score], terms: Iterable[MeasuredTerm]) -> float:
    return float(np.mean([table[term.value].mean_error for term in terms if term.value in table]))


def print_table(split: str, table: Mapping[str, Score]) -> None:
    say(f"{split}: {mean_of(table, LAYERS):.4f} over layers, {mean_of(table, MeasuredTerm):.4f} over all kinds")
    say(f"  {'':20}{'rows':>7}{'mean':>8}{'worst':>8}{'Spearman':>10}  worst case")
    for term, one in table.items():
        say(f"  {term:20}{one.num_rows:7d}{one.mean_error:8.3f}{one.worst_error:8.2f}{one.spearman:10.4f}  {one.worst}")


def as_row(one: Score) -> Row:
    return {
        "rows": one.num_rows,
        "mean_error": one.mean_error,
        "worst_error": one.worst_error,
        "worst": one.worst,
        "spearman": one.spearman,
    }


def numbers_of(fit: Fit, traits: Mapping[str, Traits]) -> Row:
    """Return the parameters of devices and programs that were fitted to all rows."""
    devices = {gpu: parameters.decoded(parameters.DEVICE, completed(gpu, fit, traits)) for gpu in fit.devices}
    return {"devices": devices, "programs": parameters.decoded(parameters.PROGRAM, fit.program)}


# ---- memory ----------------------------------------------------------------------------------------------------------


def measure_memory(rows: Sequence[LayerMemory]) -> Row:
    results: Row = {}
    for part in ("transformer_layer", "first", "last"):
        of = [row for row in rows if row.part == part]
        results[part] = memory_score(of, predicted_bytes)
    layers = [row for row in rows if row.part == "transformer_layer"]
    results["transformer_layer, program unknown"] = memory_score(layers, unknown_program)
    return results


def memory_score(rows: Sequence[LayerMemory], predict: Callable[[LayerMemory], tuple[float, float]]) -> Row:
    predicted = np.array([sum(predict(row)) for row in rows])
    measured = np.array([row.params_bytes + row.activation_bytes for row in rows])
    return as_row(score(predicted, measured, [f"{row.arch.name} tp {row.tensor}" for row in rows]))


def unknown_program(row: LayerMemory) -> tuple[float, float]:
    """Predict the memory of a layer as if its program kept what the programs of other models keep on average."""
    family = row.arch.name[:3]
    others = [kept for name, kept in KEPT.items() if name[:3] != family]
    mean = replace(
        others[0],
        hidden=float(np.mean([kept.hidden for kept in others])),
        width=row.arch.num_mlp_matrices - 1 + float(np.mean([_width_beyond(n) for n in KEPT if n[:3] != family])),
    )
    return predicted_bytes(row, mean)


def _width_beyond(name: str) -> float:
    """Return how many copies of the MLP's inner activation a program keeps beyond one per matrix into the MLP."""
    gated = name.startswith("Sailor")
    return (KEPT[name].width or 0.0) - (2 if gated else 1)


def print_memory(results: Row) -> None:
    for part, row in results.items():
        say(f"memory, {part}: mean {row['mean_error']:.4f}, worst {row['worst_error']:.4f} ({row['worst']})")


# ---- the record ------------------------------------------------------------------------------------------------------


def thinned(series: Sequence[Series], every: int) -> list[Series]:
    """Keep one in `every` rows of single kernels, and of attention only that with 8 and 32 heads."""
    if every == 1:
        return list(series)
    kept = [one for one in series if one.term not in _ATTENTION or (one.arch and one.arch.num_heads in (8, 32))]
    return [
        replace(one, columns={name: v[::every] for name, v in one.columns.items()}, seconds=one.seconds[::every])
        if one.term in _THINNED
        else one
        for one in kept
    ]


def reach_of(results: Row) -> list[Row]:
    means = results["times"]["means"]
    held = (means[WITHOUT_MODEL]["layers"] + means[WITHOUT_GPU]["layers"]) / 2
    memory = results["memory"]["transformer_layer"]["mean_error"]
    return [
        _at_most("cost_time_error_mean", held, MAX_TIME_ERROR),
        _at_most("cost_memory_error_mean", memory, MAX_MEMORY_ERROR),
    ]


def _at_most(name: str, value: float, target: float) -> Row:
    return provenance.reached(name, value, "ratio", "<=", target) | {"value": round(value, 4)}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return value


def write_table(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that has gpu_profiles/ and network_sailor/")
    parser.add_argument("--quick", action="store_true", help="fewer kernels; within a minute")
    parser.add_argument("--table", type=Path, help="write the fitted efficiencies here, and measure nothing")
    arguments = parser.parse_args()
    every = QUICK_EVERY if arguments.quick else 1
    series = thinned(load_profiles(arguments.data), every)
    say(f"{sum(map(len, series))} rows in {len(series)} series; fitting")
    fit = fit_all(series, gpu_types())
    if arguments.table:
        write_table(arguments.table, efficiency_rows(series, fit, load_traits()))
        return 0
    splits = [IN_SAMPLE, WITHOUT_MODEL, WITHOUT_GPU] + ([] if arguments.quick else [WITHOUT_SILICON])
    results: Row = {"times": measure_times(series, fit, splits), "memory": measure_memory(load_memory(arguments.data))}
    print_memory(results["memory"])
    reach = reach_of(results)
    record = {
        "bench": "planner_cost",
        "commit": provenance.commit(),
        "machine": provenance.machine(numpy=np.__version__),
        "config": {"quick": arguments.quick, "kernels_every": every, "rows": sum(map(len, series))},
        "results": _rounded(results),
        "reach": reach,
    }
    print(json.dumps(record))
    return 0 if all(row["ok"] for row in reach) else 1


if __name__ == "__main__":
    sys.exit(main())
