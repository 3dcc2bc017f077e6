"""Accelerator types that fleets may name: datasheets (`gpus.csv`) with fitted efficiencies (`efficiency.csv`).

Rates are dense and in half precision: bf16, or fp16 for cards without it. Memory is in units of 10^9 bytes. That is
less than what drivers report; the difference is left to the driver and to error correction.

The efficiency of a type is looked up by its name, then by its architecture (`arch:Ampere`), then as `default`.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from types import MappingProxyType

from periplus.errors import ConfigError
from periplus.values.machine import Device, DeviceFamily
from planner.devices.catalogue.loaders import Row, packaged_rows
from planner.problem.hardware import DEFAULT_EFFICIENCY, Efficiency, GpuType

CPU = "cpu"
"""Name of the type whose devices are cores of a host."""

_CPU_EFFICIENCY = Efficiency(
    matmul_fraction=0.5,
    saturation_tokens=8.0,
    memory_fraction=0.7,
    link_fraction=0.5,
    layer_overhead_s=200e-6,
    collective_latency_s=100e-6,
)
"""Efficiency of a core until the cores at hand are measured. Chosen by hand."""
CPU_CORE = GpuType(
    name=CPU,
    memory_bytes=4 << 30,
    memory_bytes_per_s=10e9,
    matmul_flop_per_s=80e9,
    link_bytes_per_s=5e9,
    efficiency=_CPU_EFFICIENCY,
    is_cpu=True,
)
"""One core of a server: 32 float32 operations per cycle (two 256-bit fused multiply-adds) at 2.5 GHz, with its share of
memory and memory bandwidth. It stands in until the cores at hand are measured for a model (`periplus profile`)."""

_SAME_CARD = (0.9, 1.25)
"""Range of the ratio of the memory that a driver reports to that of the packaged type, within which the card is of that
type. The packaged value is in units of 10^9 bytes and without error correction. Chosen by hand."""
CPU_MIN_BYTES = 1 << 30
"""Least memory of a worker process in bytes: half of it is libraries. Chosen by hand."""


@cache
def gpu_types() -> Mapping[str, GpuType]:
    """Return all packaged types by name, including `cpu`."""
    fits = {row["gpu"]: _efficiency(row) for row in packaged_rows("efficiency.csv")}
    types = [gpu_type_of_row(row, fits) for row in packaged_rows("gpus.csv")]
    # The guess for one core stays, with its efficiency from the table if there is one.
    cpu = replace(CPU_CORE, efficiency=fits.get(CPU, CPU_CORE.efficiency))
    return MappingProxyType({gpu.name: gpu for gpu in (*types, cpu)})


def gpu_type_of_row(row: Row, fits: Mapping[str, Efficiency]) -> GpuType:
    """Return the type that one row of the datasheet table describes; `fits` are the efficiencies by name."""
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
    """Return (number of devices, type of one device) that a host's cores make. Each device is one worker process.

    A device is one core, or several if each would have less than `CPU_MIN_BYTES` of memory. A `memory_bytes` of 0
    stands for the memory of `core` per core.
    """
    # As many worker processes as memory holds, and at most one for each core.
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


def type_of(device: Device) -> GpuType:
    """Return the type of an accelerator, with the memory that it has.

    An emulated device is slower than its model in everything, by its slowdown. Raises: ConfigError if no type is known
    by the name of its model.
    """
    gpu = gpu_types()[gpu_name(device.model)]
    if device.memory_bytes:
        gpu = replace(gpu, memory_bytes=min(gpu.memory_bytes, device.memory_bytes))
    if device.kind is not DeviceFamily.EMULATED:
        return gpu
    return gpu.slowed(device.slowdown, f"emulated-{gpu.name}-{device.slowdown:g}")


def is_whole(gpu: GpuType, memory_bytes: int) -> bool:
    """Return whether a card whose driver reports that much memory is a whole card of that type.

    The card may instead be another type, or cut into partitions.
    """
    return _SAME_CARD[0] < memory_bytes / gpu.memory_bytes < _SAME_CARD[1]


def gpu_name(text: str, also: Iterable[str] = ()) -> str:
    """Return the type that a name, an alias or a product name stands for.

    `also` names types that a fleet file defines itself. Raises: ConfigError; the message lists the nearest known names.
    """
    if text in (own := frozenset(also)):
        return text
    keys = _names_by_key()
    if (known := keys.get(_key(text))) is not None:
        return known
    # Names of the file's own types are suggested, too.
    candidates = {**keys, **{_key(name): name for name in own}}
    near = difflib.get_close_matches(_key(text), sorted(candidates), n=4, cutoff=0.5)
    names = list(dict.fromkeys(candidates[key] for key in near)) or sorted(own | gpu_types().keys())
    raise ConfigError(f"{text!r} is no known accelerator; nearest: {', '.join(names)}; or define it under gpu_types")


@cache
def _names_by_key() -> Mapping[str, str]:
    names = {_key(row["alias"]): row["gpu"] for row in packaged_rows("gpu_aliases.csv")}
    return MappingProxyType(names | {_key(name): name for name in gpu_types()})


_NOISE = re.compile(r"\b(nvidia|amd|tesla|geforce|instinct|quadro)\b")
"""Words in product names that do not distinguish accelerators."""


def _key(text: str) -> str:
    """Reduce `NVIDIA A100-SXM4-40GB` and `a100 sxm4 40gb` to the same key."""
    words = _NOISE.sub(" ", re.sub(r"[^a-z0-9]+", " ", text.lower()))
    return "".join(words.split())


def _efficiency(row: Row) -> Efficiency:
    """Return the efficiency of a row. An empty cell or a missing column stands for the default of its field."""
    return Efficiency(**{field.name: float(row[field.name]) for field in fields(Efficiency) if row.get(field.name)})
