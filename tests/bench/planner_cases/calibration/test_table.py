"""The packaged efficiencies: one row for every packaged type, each value in its physical range."""

import re
from dataclasses import fields

import pytest

from bench.planner_cases.calibration import parameters
from planner.devices.catalogue import gpu_types
from planner.devices.catalogue.loaders import packaged_rows
from planner.problem.hardware import Efficiency

ROWS = {row["gpu"]: row for row in packaged_rows("efficiency.csv")}


def test_every_type_has_a_row_and_every_row_is_of_a_type() -> None:
    assert ROWS.keys() == {*gpu_types(), "default"}


def test_the_columns_are_the_fields_of_an_efficiency() -> None:
    # What a process does beside the model is in no published profile.
    beside = re.compile(r"(sample|step|version)_overhead_s|busy_cores")
    names = [field.name for field in fields(Efficiency) if not beside.fullmatch(field.name)]
    assert sorted(each.name for each in parameters.EFFICIENCY) == sorted(names)
    assert all({*names, "gpu", "source"} == row.keys() for row in ROWS.values())


@pytest.mark.parametrize("name", sorted(ROWS))
def test_numbers_are_shares_and_times(name: str) -> None:
    row = {key: float(value) for key, value in ROWS[name].items() if key not in {"gpu", "source"}}
    for key in ("matmul_fraction", "memory_fraction", "link_fraction", "attention_fraction"):
        assert 0 < row[key] <= 1
    for key in ("layer_overhead_s", "collective_latency_s", "attention_overhead_s"):
        assert 0 <= row[key] < 1e-3


def test_a_row_says_where_it_is_from() -> None:
    assert all(row["source"] for row in ROWS.values())
    assert ROWS["H20"]["source"] == "class default"
    assert ROWS["H100-SXM"]["source"].startswith("fitted to")


def test_types_have_what_their_rows_say() -> None:
    assert gpu_types()["L40S"].efficiency.link_sharing == float(ROWS["L40S"]["link_sharing"])
