"""The accelerators that fleets may name: datasheet facts (`gpus.csv`) with fitted efficiencies (`efficiency.csv`).

Rates are dense half-precision ones: bf16, and fp16 for cards without it. Memory is counted in units of 10^9 bytes,
which is less than each driver reports: the rest is for drivers and error correction.

An efficiency is looked up by the type's name, then by its architecture (`arch:Ampere`), then as `default`.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from types import MappingProxyType

from periplus.errors import ConfigError
from planner.catalogue.loaders import Row, packaged_rows
from planner.question.hardware import Efficiency, GpuType

CPU = "cpu"
DEFAULT_EFFICIENCY = Efficiency(
    matmul_fraction=0.6,
    saturation_tokens=128.0,
    memory_fraction=0.8,
    link_fraction=0.7,
    layer_overhead_s=20e-6,
    collective_latency_s=20e-6,
)
"""Where no table says better."""

_CPU_EFFICIENCY = Efficiency(
    matmul_fraction=0.5,
    saturation_tokens=8.0,
    memory_fraction=0.7,
    link_fraction=0.5,
    layer_overhead_s=200e-6,
    collective_latency_s=100e-6,
)
CPU_CORE = GpuType(
    name=CPU,
    memory_bytes=4 << 30,
    memory_bytes_per_s=10e9,
    matmul_flop_per_s=80e9,
    link_bytes_per_s=5e9,
    efficiency=_CPU_EFFICIENCY,
    is_cpu=True,
)
"""One core of a server: 32 float32 operations a cycle (two 256-bit fused multiply-adds) at 2.5 GHz, and its share of
the memory and of the memory's bandwidth. A stand-in until the cores at hand are measured."""

_SAME_CARD = (0.9, 1.25)
"""Memory that drivers report over the packaged type's, which is in units of 10^9 bytes and before error correction."""
CPU_MIN_BYTES = 1 << 30
"""Of a worker process: half of it is libraries."""


@cache
def gpu_types() -> Mapping[str, GpuType]:
    """Every packaged type by its name, `cpu` among them."""
    fits = {row["gpu"]: _efficiency(row) for row in packaged_rows("efficiency.csv")}
    types = [gpu_type_of_row(row, fits) for row in packaged_rows("gpus.csv")]
    cpu = replace(CPU_CORE, efficiency=fits.get(CPU, CPU_CORE.efficiency))
    return MappingProxyType({gpu.name: gpu for gpu in (*types, cpu)})


def gpu_type_of_row(row: Row, fits: Mapping[str, Efficiency]) -> GpuType:
    """One row of the table of datasheets."""
    name, arch = row["name"], f"arch:{row['arch']}"
    return GpuType(
        name=name,
        memory_bytes=round(float(row["memory_gb"]) * 1e9),
        memory_bytes_per_s=float(row["hbm_gbytes_per_s"]) * 1e9,
        matmul_flop_per_s=float(row["bf16_dense_tflops"] or row["fp16_dense_tflops"]) * 1e12,
        link_bytes_per_s=float(row["intra_node_gbytes_per_s"]) * 1e9,
        efficiency=fits.get(name) or fits.get(arch) or fits.get("default") or DEFAULT_EFFICIENCY,
    )


def cpu_type(core: GpuType, *, num_cores: int, memory_bytes: int) -> tuple[int, GpuType]:
    """A host's cores as devices: how many, and what one of them is. Each is one worker process.

    One core each, or several where memory would be below a GiB; memory 0: as much as the core says.
    """
    num = num_cores if memory_bytes == 0 else max(1, min(num_cores, memory_bytes // CPU_MIN_BYTES))
    cores = num_cores // num
    memory = core.memory_bytes * cores if memory_bytes == 0 else memory_bytes // num
    gpu = replace(
        core,
        name=f"{CPU}-{cores}c-{memory}b",
        memory_bytes=memory,
        memory_bytes_per_s=core.memory_bytes_per_s * cores,
        matmul_flop_per_s=core.matmul_flop_per_s * cores,
    )
    return num, gpu


def is_whole(gpu: GpuType, memory_bytes: int) -> bool:
    """Whether a card whose driver reports so much memory is that type, neither another nor cut into partitions."""
    return _SAME_CARD[0] < memory_bytes / gpu.memory_bytes < _SAME_CARD[1]


def gpu_name(text: str, also: Iterable[str] = ()) -> str:
    """The type that a name, an alias or a product name stands for; `also` are types that a fleet defines itself.

    Raises: ConfigError naming the nearest known ones.
    """
    if text in (own := frozenset(also)):
        return text
    keys = _names_by_key()
    if (known := keys.get(_key(text))) is not None:
        return known
    candidates = {**keys, **{_key(name): name for name in own}}
    near = difflib.get_close_matches(_key(text), sorted(candidates), n=4, cutoff=0.5)
    names = list(dict.fromkeys(candidates[key] for key in near)) or sorted(own | gpu_types().keys())
    raise ConfigError(f"{text!r} is no known accelerator; nearest: {', '.join(names)}; or define it under gpu_types")


@cache
def _names_by_key() -> Mapping[str, str]:
    names = {_key(row["alias"]): row["gpu"] for row in packaged_rows("gpu_aliases.csv")}
    return MappingProxyType(names | {_key(name): name for name in gpu_types()})


_NOISE = re.compile(r"\b(nvidia|amd|tesla|geforce|instinct|quadro)\b")


def _key(text: str) -> str:
    """Makes `NVIDIA A100-SXM4-40GB` and `a100 sxm4 40gb` one."""
    words = _NOISE.sub(" ", re.sub(r"[^a-z0-9]+", " ", text.lower()))
    return "".join(words.split())


def _efficiency(row: Row) -> Efficiency:
    """An empty cell, or a column that is not there, is the field's default."""
    return Efficiency(**{field.name: float(row[field.name]) for field in fields(Efficiency) if row.get(field.name)})
