"""Pieces of the planner's benchmark are kept, resumed, and never counted where they failed."""

import math
import time
from pathlib import Path

import pytest

from bench.planner_cases import areal_hex, hetrl, optimum, real, speed
from bench.planner_cases.cells import Cell, Row, Rows, Section, Settings, Store, reached, run_section
from bench.planner_cases.hetrl import HEURISTICS, OURS, PUBLISHED

SETTINGS = Settings(data=Path("nowhere"), quick=True, seed=0)


def _double(value: int) -> Row:
    if value < 0:
        raise ValueError(f"{value} is negative")
    return {"doubled": 2 * value}


def _reach(rows: Rows) -> list[Row]:
    return [reached("sum", sum(row["doubled"] for row in rows.values()), "", "==", 6)]


def _section(*values: int) -> Section:
    made = [Cell(name=f"cell {value}", run=_double, arguments=(value,)) for value in values]
    return Section(name="doubles", cells=lambda settings: made, reach=_reach)


def _run(section: Section, store: Store, until_s: float = math.inf) -> tuple[Rows, list[str]]:
    return run_section(section, store, until_s=until_s, say=lambda text: None, wanted=lambda name: True)


@pytest.mark.processes
def test_a_piece_that_is_kept_is_not_run_again_and_a_failed_one_is(tmp_path: Path) -> None:
    store = Store(folder=tmp_path, settings=SETTINGS, commit="abc")
    rows, left = _run(_section(1, -1), store)
    assert rows["cell 1"]["doubled"] == 2
    assert "-1 is negative" in rows["cell -1"]["error"]
    assert rows["cell 1"]["peak_gib"] > 0
    assert left == []
    assert store.kept("doubles", "cell 1") == rows["cell 1"]
    assert store.kept("doubles", "cell -1") is None


def test_when_time_is_over_what_is_left_is_named(tmp_path: Path) -> None:
    store = Store(folder=tmp_path, settings=SETTINGS, commit="abc")
    store.keep("doubles", "cell 1", {"doubled": 2})
    rows, left = _run(_section(1, 2), store, until_s=time.monotonic() - 1)
    assert rows == {"cell 1": {"doubled": 2}}
    assert left == ["cell 2"]


def test_rows_of_other_sizes_and_seeds_are_apart(tmp_path: Path) -> None:
    Store(folder=tmp_path, settings=SETTINGS, commit="abc").keep("doubles", "cell 1", {"doubled": 2})
    full = Settings(data=SETTINGS.data, quick=False, seed=0)
    assert Store(folder=tmp_path, settings=full, commit="abc").kept("doubles", "cell 1") is None


@pytest.mark.parametrize(
    ("op", "value", "ok"), [("==", 0, True), ("<=", 0.5, False), (">=", 0.5, True), ("==", 1, False)]
)
def test_a_figure_is_held_against_its_target(op: str, value: float, ok: bool) -> None:
    assert reached("figure", value, "", op, 0)["ok"] is ok


def test_three_hundred_cases_are_compared() -> None:
    full = Settings(data=SETTINGS.data, quick=False, seed=0)
    assert sum(cell.arguments[2] for cell in optimum.cells(full)) == 300


def test_all_of_hetrls_cases_and_twenty_fleets_are_measured() -> None:
    full = Settings(data=SETTINGS.data, quick=False, seed=0)
    assert len(hetrl.cells(full)) == 48
    assert len(real.cells(full)) == 20
    assert len({cell.name for cell in (*areal_hex.cells(full), *speed.cells(full))}) == 18 + 12


def test_a_mismatch_and_a_missing_plan_count() -> None:
    assert optimum._off(2.0, 2.0 * (1 + 1e-9), False) < 1e-6
    assert optimum._off(2.0, None, False) == 1.0
    assert optimum._off(None, None, True) == 0.0
    assert optimum._off(None, None, False) == 1.0


def test_what_is_not_proved_in_time_counts_with_all_its_time() -> None:
    row: Row = {"num_gpus": 64, "one_percent_s": None, "wall_s": 60.0, "first_s": 0.1, "peak_gib": 0.1}
    figures = {each["name"]: each for each in speed.reach({"a": row, "b": row | {"one_percent_s": 1.0}})}
    assert figures["one_percent_s_64"]["value"] == 60.0
    assert figures["first_feasible_s"]["ok"]
    assert "peak_gib" not in figures


def test_ratios_stand_beside_the_published_ranges() -> None:
    row: Row = {
        "scenario": "single-region",
        "is_async": False,
        "verl_ratio": 2.0,
        "verl_ratio_at_most": 2.1,
        "streamrl_ratio": None,
        "streamrl_ratio_at_most": None,
    }
    table = hetrl.summary({"a": row, "b": row | {"verl_ratio": 8.0}})
    assert list(table) == ["single-region sync over verl"]
    found = table["single-region sync over verl"]
    assert (found["least"], found["mean"], found["largest"]) == (2.0, pytest.approx(4.0), 8.0)
    assert found["published"] == PUBLISHED["single-region"]["sync_verl"]


def test_a_heuristic_that_is_ahead_at_any_time_is_counted() -> None:
    base: Row = {"gap": 0.0, "simulated_error": 0.01}
    figures = hetrl.reach({"a": base | {"beaten": 0}, "b": base | {"beaten": 2}})
    assert next(each for each in figures if each["name"] == "beaten_by_heuristics")["value"] == 2
    assert OURS not in HEURISTICS
