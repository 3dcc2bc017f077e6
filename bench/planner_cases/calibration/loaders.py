"""Reader of the profiles in `gpu_profiles/` (its README names their sources) and of the packaged datasheets.

The modules `serving_tables` (Helix, Vidur), `training_tables` (Sailor) and `kernel_tables` (aiconfigurator,
collectives) turn the rows into series. They say what the tables leave out, and which rows are dropped and why.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from bench.planner_cases.calibration import kernel_tables, serving_tables, training_tables
from bench.planner_cases.calibration.layer_memory import LayerMemory
from bench.planner_cases.calibration.observations import Series
from bench.planner_cases.calibration.rows import Row
from bench.planner_cases.calibration.similar_types import Traits
from planner.devices.catalogue import gpu_types
from planner.devices.catalogue.loaders import packaged_rows

_SILICON = {
    **dict.fromkeys(("A100-40GB-SXM", "A100-80GB-SXM"), "GA100"),
    **dict.fromkeys(("H100-SXM", "H200-SXM", "GH200-96GB"), "GH100"),
    **dict.fromkeys(("RTX-2080-Ti", "Titan-RTX"), "TU102"),
    **dict.fromkeys(("A40", "RTX-3090"), "GA102"),
}
"""Chip of each profiled type that shares its chip with another type."""


def load_profiles(data: Path) -> tuple[Series, ...]:
    """Return all series of the tables in `data`/gpu_profiles.

    Measured links of Sailor's machines come from `data`/network_sailor.
    """
    folder = data / "gpu_profiles"
    links = training_tables.measured_links(_rows(data / "network_sailor" / "intra_node_bandwidth.csv"))
    loads: tuple[tuple[str, Callable[[Iterable[Row]], Iterator[Series]]], ...] = (
        ("helix_layer_times.csv", serving_tables.helix_layers),
        ("sailor_train_layer_times.csv", partial(training_tables.training_layers, links)),
        ("vidur_dense_ops.csv", serving_tables.vidur_layers),
        ("vidur_collectives.csv", kernel_tables.vidur_collectives),
        ("aiconfigurator_gemm_bf16.csv", kernel_tables.matrix_products),
        ("aiconfigurator_attention_bf16.csv", kernel_tables.attention_kernels),
        ("aiconfigurator_nccl.csv", kernel_tables.nccl_collectives),
    )
    return tuple(series for name, load in loads for series in load(_rows(folder / name)))


def load_traits() -> dict[str, Traits]:
    """Return the traits of all packaged types by name."""
    gpus = gpu_types()
    return {
        row["name"]: Traits(
            gpu=gpus[row["name"]],
            arch=row["arch"],
            power_w=float(row["tdp_w"]),
            silicon=_SILICON.get(row["name"], row["name"]),
        )
        for row in packaged_rows("gpus.csv")
    }


def load_memory(data: Path) -> tuple[LayerMemory, ...]:
    """Return Sailor's measured bytes of layers."""
    return training_tables.memory_of_layers(_rows(data / "gpu_profiles" / "sailor_layer_memory.csv"))


def _rows(path: Path) -> tuple[Row, ...]:
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))
