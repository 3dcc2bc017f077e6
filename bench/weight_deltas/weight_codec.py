"""Claim: a delta between two published versions costs less than the entropy of its positions and values, exactly.

The entropy is the memoryless one, H(p)/p + H(step) bits per change: no codec that ignores the values of the base can
take less. A delta also takes at most 8 % more than the entropy of both given each weight's exponent and tensor.

The deltas are of real optimizer steps: two models, each continued at learning rates of reinforcement and at the demo's
own, over one step and over eight folded ones. bench/weight_deltas/series.py says which, and how they are made.
`--cache` is the folder for them; making them takes about an hour on two cores the first time. Published layouts of
others (bench/weight_deltas/peers.py) are measured too, after a check against known figures. Synthetic deltas
(bench/weight_deltas/synthetic.py) show other densities and sizes, and speeds are measured on them.

First each delta is decoded from its parts, and the digest of the result must be that of the new version. Then sizes are
compared with the floors of `periplus.codec.weights.floors`. `conditional` charges nothing for the tables of
probabilities that a decoder needs, and `conditional_with_tables` charges half a logarithm per parameter. The entropy of
steps, zero included, given exponent and tensor equals the conditional floor. `bits_vs_conditional_floor_max` and
`dense_vs_step_entropy_max` use the bare floor if the target is met with it, and else the floor with tables.
`floors_used` says which one, and both are in the results. A fold is exact if applying it gives the same state as
applying its eight deltas.

Speeds are measured on one core (the process is bound to it) with one thread, in GB (10^9 bytes) of the full bf16 state
per second of wall time, as the median of several passes; CPU time is recorded too. `gpu_encode_vs_read`
(bench/weight_deltas/device.py) is measured if there is a GPU, and listed as not measured otherwise. The codec has one
setting, which meets all targets. `--quick` needs no cache, because its deltas are synthetic. The last line is one JSON
object.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard

from bench import provenance
from bench.provenance import say
from bench.weight_deltas import series as real
from bench.weight_deltas import synthetic
from bench.weight_deltas.device import gpu_encode_vs_read
from bench.weight_deltas.peers import check_known
from bench.weight_deltas.sizes import HEADER, Chain, Row, of_chains, sizes
from bench.weight_deltas.speeds import memory, peer_speeds, speeds
from periplus.values.weight_state import WeightState, content_bytes

MAX_VS_CONDITIONAL = 1.08
"""Target: largest size of a delta over the conditional floor."""
MAX_VS_IID = 0.75
"""Target: largest size of a delta over the memoryless floor."""
MIN_ENCODE_GBYTES_PER_S = 0.8
"""Target: least rate of encoding on one core, in GB/s of the bf16 state."""
MIN_DECODE_GBYTES_PER_S = 1.2
"""Target: least rate of decoding and applying on one core, in GB/s of the bf16 state."""
MAX_VS_STEP_ENTROPY = 1.05
"""Target: largest size of a dense delta over the entropy of its steps given exponent and tensor."""
MAX_FOLD_VS_SUM = 0.62
"""Target: largest size of a fold of eight deltas over the sum of their sizes."""
DENSE = (0.1, 0.8)
"""Range of the share of changed elements of a dense delta. Denser ones, from the demo's rates, have no target."""

MAX_GPU_VS_READ = 3.0
"""Target: largest time of encoding on a GPU over the time of copying a state within its memory."""
MAX_VS_FULL_COPY = 1.01
"""Largest size of any delta over a zstandard-compressed full copy; a larger one ends the run."""
GPU_ELEMENTS, GPU_DENSITY = 1 << 30, 0.01

GSM8K = Path(__file__).resolve().parents[2] / "shared" / "data" / "math_prompts" / "gsm8k_train.jsonl"
ONE_PERCENT_RATE = 1e-6
"""Learning rate at which a synthetic step changes 1.0 % of the elements."""

DENSITY_RATES = (1.5e-7, 4e-7, 1e-6, 2e-6, 3e-6, 6e-6, 1.5e-5, 3e-5, 6e-5, 1e-4, 2e-4, 3e-4, 7e-4)
"""Learning rates at which a synthetic step changes 0.2 to 80 % of the elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    quick: bool
    density_elements: int
    speed_elements: int
    speed_passes: int
    peer_passes: int
    simulated_elements: int
    seed: int = 0


FULL = Config(
    quick=False,
    density_elements=8 << 20,
    speed_elements=128 << 20,
    speed_passes=9,
    peer_passes=3,
    simulated_elements=4 << 20,
)
QUICK = Config(
    quick=True,
    density_elements=1 << 20,
    speed_elements=16 << 20,
    speed_passes=5,
    peer_passes=1,
    simulated_elements=1 << 20,
)


# ---- what is measured ------------------------------------------------------------------------------------------------


def real_chain(folder: Path, one: real.Series) -> Chain:
    return Chain(
        name=f"{one.model}/{one.name}", read=partial(real.read, folder, one), singles=one.singles, folds=one.folds
    )


def simulated_chain(config: Config) -> Chain:
    """Return a chain of versions of Adam on white-noise gradients, of which those that its deltas need are kept."""
    found = synthetic.simulated(
        ONE_PERCENT_RATE, tuple(range(1, 14)), num_elements=config.simulated_elements, seed=config.seed
    )
    return Chain(name="simulated/1e-6", read=lambda v: found[v][1], singles=((4, 5), (12, 13)), folds=((5, 13),))


def densities(config: Config) -> list[Row]:
    """Return rows for synthetic steps that change 0.2 to 80 %, and for two states that are independent."""
    rows = []
    for rate in DENSITY_RATES:
        base, new = synthetic.one_step(config.density_elements, rate, config.seed)
        rows.append(sizes(f"one step at {rate:g}", base, new, say) | speeds(base, new, passes=config.peer_passes))
    other, _ = synthetic.one_step(config.density_elements, ONE_PERCENT_RATE, config.seed + 1)
    return [*rows, sizes("another model", base, other, say, with_peers=False)]


def speed_at_one_percent(config: Config) -> Row:
    base, new = synthetic.one_step(config.speed_elements, ONE_PERCENT_RATE, config.seed)
    say(f"speeds on {content_bytes(new) / 1e6:.0f} MB")
    row = speeds(base, new, passes=config.speed_passes)
    say(f"encode {row['encode_gbytes_per_s']:.2f}, decode and apply {row['decode_apply_gbytes_per_s']:.2f} GB/s")
    peers = peer_speeds(base, new, passes=config.peer_passes)
    return {"content_bytes": content_bytes(new), **row, "peers": peers, "memory": memory(base, new)}


def known_cases(config: Config) -> dict[str, tuple[WeightState, WeightState]]:
    """Return the deltas for which figures of the other layouts are known; a quick run has only the fastest one."""
    elements = config.simulated_elements
    steps = (5,) if config.quick else (5, 200)
    at_1e6 = synthetic.simulated(1e-6, steps, num_elements=elements)
    cases = {f"step {step} at 1e-6": found for step, found in at_1e6.items()}
    if not config.quick:
        cases["step 200 at 3e-6"] = synthetic.simulated(3e-6, (200,), num_elements=elements)[200]
        cases["3 % uniform"], cases["5 % uniform"] = synthetic.stress(0.03), synthetic.stress(0.05)
    return cases


def measure(config: Config, cache: Path | None) -> Row:
    say("the layouts of others, against known figures")
    results: Row = {"known_figures": check_known(known_cases(config))}
    say(HEADER)
    results["simulated"], results["simulated_folds"] = of_chains([simulated_chain(config)], say)
    results["densities"] = densities(config)
    if cache is None:
        results["deltas"], results["folds"] = results["simulated"], results["simulated_folds"]
        results["dense"], results["dense_folds"] = results["densities"], []
    else:
        results["deltas"], results["folds"] = of_chains((real_chain(cache, one) for one in real.sparse_series()), say)
        results["dense"], results["dense_folds"] = of_chains(
            (real_chain(cache, one) for one in real.dense_series()), say
        )
        results["made_from"] = real.about_all(cache)
    results["speed"] = speed_at_one_percent(config)
    every = [row for key in ("deltas", "dense", "densities", "simulated") for row in results[key]]
    results["vs_zstd1_full_copy_max"] = worst = worst_of(every, "vs_zstd1_full_copy")
    assert worst <= MAX_VS_FULL_COPY, f"a delta is {worst} times the full copy"
    if torch.cuda.is_available():
        results["gpu"] = gpu_encode_vs_read(GPU_ELEMENTS, GPU_DENSITY)
    else:
        results["not_measured"] = {"gpu_encode_vs_read": "no GPU at hand"}
    return results


def worst_of(rows: Sequence[Row], key: str) -> float:
    return max(float(row[key]) for row in rows)


def worst_of_floors(rows: Sequence[Row], target: float) -> tuple[str, float]:
    """Return which conditional floor is used, and the largest ratio of a delta's size to it."""
    bare = worst_of(rows, "vs_conditional")
    if bare <= target:
        return "bare", bare
    return "with tables", worst_of(rows, "vs_conditional_with_tables")


def reach_of(results: Row) -> list[Row]:
    deltas, folds, speed = results["deltas"], results["folds"], results["speed"]
    conditional = worst_of_floors(deltas, MAX_VS_CONDITIONAL)
    dense = worst_of_floors(
        [row for row in results["dense"] if DENSE[0] <= row["density"] <= DENSE[1]], MAX_VS_STEP_ENTROPY
    )
    results["floors_used"] = {"bits_vs_conditional_floor_max": conditional[0], "dense_vs_step_entropy_max": dense[0]}
    exact = all(row["exact"] for row in (*folds, *results["dense_folds"]))
    rows = [
        _at_most("bits_vs_conditional_floor_max", conditional[1], MAX_VS_CONDITIONAL),
        _at_most("bits_vs_iid_floor_max", worst_of(deltas, "vs_iid"), MAX_VS_IID),
        _at_least("encode_gbytes_per_s", speed["encode_gbytes_per_s"], MIN_ENCODE_GBYTES_PER_S),
        _at_least("decode_apply_gbytes_per_s", speed["decode_apply_gbytes_per_s"], MIN_DECODE_GBYTES_PER_S),
        _at_most("dense_vs_step_entropy_max", dense[1], MAX_VS_STEP_ENTROPY),
        {"name": "fold8_exact", "value": exact, "unit": "", "op": "==", "target": True, "ok": exact},
        _at_most("fold8_size_vs_sum", worst_of(folds, "size_vs_sum"), MAX_FOLD_VS_SUM),
    ]
    if "gpu" in results:
        rows.append(_at_most("gpu_encode_vs_read", results["gpu"]["gpu_encode_vs_read"], MAX_GPU_VS_READ))
    return rows


def _at_most(name: str, value: float, target: float) -> Row:
    return provenance.reached(name, value, "ratio", "<=", target) | {"value": round(value, 4)}


def _at_least(name: str, value: float, target: float) -> Row:
    return provenance.reached(name, value, "GB/s", ">=", target) | {"value": round(value, 4)}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="simulated deltas alone, small: within a minute")
    parser.add_argument("--cache", type=Path, help="folder of the real deltas; what is missing is made")
    parser.add_argument("--gsm8k", type=Path, default=GSM8K, help="GSM8K's training file")
    parser.add_argument("--limit-s", type=float, default=5400.0, help="wall limit of the training on it")
    arguments = parser.parse_args()
    if not arguments.quick and arguments.cache is None:
        parser.error("--cache DIR says where the real deltas lie, or where to make them; --quick needs none")
    config, load = QUICK if arguments.quick else FULL, os.getloadavg()[0]
    cache = None if arguments.quick else arguments.cache
    if cache is not None:
        sources = real.Sources(folder=cache, gsm8k=arguments.gsm8k, limit_s=arguments.limit_s, seed=config.seed)
        real.make(sources, (*real.sparse_series(), *real.dense_series()), say)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    results = measure(config, cache)
    reach = reach_of(results)
    record = {
        "bench": "weight_codec",
        "commit": provenance.commit(),
        "machine": provenance.machine(load, numpy=np.__version__, zstd=".".join(map(str, zstandard.ZSTD_VERSION))),
        "config": asdict(config),
        "results": _rounded(results),
        "reach": reach,
    }
    print(json.dumps(record))
    return 0 if all(row["ok"] for row in reach) else 1


if __name__ == "__main__":
    sys.exit(main())
