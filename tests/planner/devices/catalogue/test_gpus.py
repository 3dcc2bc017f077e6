import csv
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.errors import ConfigError
from planner.devices.catalogue import gpu_name, gpu_types
from planner.devices.catalogue.gpus import CPU_CORE, CPU_MIN_BYTES, cpu_type, gpu_type_of_row
from planner.problem.hardware import Efficiency

DATA = Path(__file__).parents[4] / "planner" / "data"


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_datasheets_come_in_plain_units() -> None:
    gpu = gpu_types()["A100-40GB-SXM"]
    assert (gpu.memory_bytes, gpu.memory_bytes_per_s) == (40 * 10**9, 1555e9)
    assert (gpu.matmul_flop_per_s, gpu.link_bytes_per_s) == (312e12, 300e9)


@pytest.mark.parametrize("name", ["V100-SXM2-16GB", "T4"])
def test_a_card_without_bf16_has_its_fp16_rate(name: str) -> None:
    row = next(row for row in rows("gpus.csv") if row["name"] == name)
    assert row["bf16_dense_tflops"] == ""
    assert gpu_types()[name].matmul_flop_per_s == float(row["fp16_dense_tflops"]) * 1e12


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100", "A100-40GB-SXM"),
        ("A100-40GB", "A100-40GB-SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("nvidia-tesla-a100", "A100-40GB-SXM"),
        ("nvidia-a100-80gb", "A100-80GB-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("nvidia-h100-mega-80gb", "H100-SXM"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla T4", "T4"),
        ("nvidia-tesla-t4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("h20", "H20"),
        ("cpu", "cpu"),
    ],
)
def test_product_and_catalogue_names_find_their_type(text: str, name: str) -> None:
    assert gpu_name(text) == name


def test_every_alias_is_of_a_known_type_and_no_alias_takes_a_types_own_name() -> None:
    types = gpu_types()
    for row in rows("gpu_aliases.csv"):
        assert row["gpu"] in types
        assert gpu_name(row["alias"]) == row["gpu"]
    assert all(gpu_name(name) == name for name in types)


def test_an_unknown_accelerator_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(ConfigError, match=r"'H1000' is no known accelerator; nearest: .*H100-SXM"):
        gpu_name("H1000")


def test_types_that_a_fleet_defines_are_known_and_suggested() -> None:
    assert gpu_name("our-card", ["our-card"]) == "our-card"
    with pytest.raises(ConfigError, match="nearest: our-card"):
        gpu_name("our-cart", ["our-card"])


def test_an_efficiency_is_looked_up_by_type_then_by_architecture_then_as_default() -> None:
    row = next(row for row in rows("gpus.csv") if row["name"] == "L4")
    fits = {
        name: gpu_types()["T4"].efficiency.__class__(**_fit(x)) for name, x in zip("abc", (0.1, 0.2, 0.3), strict=True)
    }
    for keys, expected in ((("L4", "arch:Ada", "default"), "a"), (("arch:Ada", "default"), "b"), (("default",), "c")):
        known = dict(zip(keys, [fits[c] for c in "abc"[-len(keys) :]], strict=True))
        assert gpu_type_of_row(row, known).efficiency == fits[expected]


def _fit(x: float) -> dict[str, float]:
    return {field.name: x for field in fields(Efficiency)}


def test_all_rates_are_above_zero() -> None:
    for gpu in gpu_types().values():
        assert min(gpu.memory_bytes, gpu.memory_bytes_per_s, gpu.matmul_flop_per_s, gpu.link_bytes_per_s) > 0
        assert 0 < gpu.efficiency.matmul_fraction <= 1
        assert 0 < gpu.efficiency.memory_fraction <= 1


@given(st.integers(1, 4096), st.integers(0, 1 << 44))
def test_a_hosts_devices_never_claim_more_than_the_host_has(num_cores: int, memory_bytes: int) -> None:
    num, gpu = cpu_type(CPU_CORE, num_cores=num_cores, memory_bytes=memory_bytes)
    assert 1 <= num <= num_cores
    assert gpu.is_cpu
    assert num * gpu.matmul_flop_per_s <= num_cores * CPU_CORE.matmul_flop_per_s
    if memory_bytes:
        assert num * gpu.memory_bytes <= memory_bytes
        assert num == 1 or gpu.memory_bytes >= CPU_MIN_BYTES


def test_the_readme_of_the_tables_names_each_of_them() -> None:
    text = (DATA / "README.md").read_text()
    assert all(f"`{path.name}`" in text for path in DATA.glob("*.csv"))
