"""Ratios and methods over time are counted as the record says."""

import pytest

from bench.planner_cases.cells import Row
from bench.planner_cases.report.hetrl_tables import (
    compared,
    cornered_sentence,
    families_sentence,
    over_time,
    published_sentence,
)

ROW: Row = {
    "scenario": "single-region",
    "model": "Qwen3-4B",
    "algorithm": "ppo",
    "is_async": False,
    "verl_ratio": 1.6,
    "verl_ratio_at_most": 1.7,
    "verl_is_whole": True,
    "verl_is_cornered": True,
    "streamrl_ratio": None,
    "streamrl_ratio_at_most": None,
    "streamrl_is_whole": False,
    "streamrl_is_cornered": False,
}


def test_ratios_are_held_against_the_published_range_of_their_network_timing_and_family() -> None:
    rows = [ROW, ROW | {"verl_ratio": 1.2, "verl_ratio_at_most": 1.3}, ROW | {"verl_ratio": 3.0}]
    text = published_sentence(rows)
    assert "Ratios beside a published range: 3; 1 below it, 1 within, 1 above." in text
    assert "In 1 case the certified upper bound too is below the range" in text
    assert "certified" not in published_sentence([ROW])
    assert published_sentence([ROW | {"is_async": True}]) == "No ratio stands beside a published range."


def test_a_family_without_a_placement_is_counted_and_not_averaged() -> None:
    found = {(each.timing, each.family): each for each in compared([ROW])}
    assert found["sync", "verl"].ratios == [1.6]
    assert found["sync", "streamrl"].ratios == []
    assert ("async", "verl") not in found
    assert "no placement of the family in 1" in families_sentence([ROW])
    assert "`streamrl`: searched in full in 0 of 1 case" in families_sentence([ROW])


def test_ratios_that_say_more_of_memory_are_named() -> None:
    assert "each sample: `verl` in 1 case, 1.60 to 1.60 times. verl can" in cornered_sentence([ROW])
    assert cornered_sentence([ROW | {"verl_is_cornered": False}]) == ""


def _by_time(auto: float, hetrl: float | None, areal_hex: float) -> Row:
    return {"by_time": {"auto": {"0.2": auto}, "hetrl": {"0.2": hetrl}, "areal_hex": {"0.2": areal_hex}}}


def test_methods_are_measured_against_the_best_and_those_without_a_placement_are_counted() -> None:
    found = over_time([_by_time(10.0, None, 20.0), _by_time(10.0, 5.0, 10.0 * (1 + 1e-12))])
    auto, hetrl, areal_hex = (found[name][0.2] for name in ("auto", "hetrl", "areal_hex"))
    assert auto.mean == pytest.approx(2**0.5)
    assert (auto.num_behind, hetrl.num_behind, areal_hex.num_behind) == (1, 1, 2)
    assert (hetrl.num_without, hetrl.mean) == (1, 1.0)


def test_times_that_not_every_case_has_are_left_out() -> None:
    longer = _by_time(10.0, 9.0, 8.0)
    longer["by_time"]["auto"]["0.5"] = 9.0
    assert list(over_time([_by_time(10.0, 9.0, 8.0), longer])["auto"]) == [0.2]
