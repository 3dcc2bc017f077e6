"""A record that disproves its own certificates says so."""

from dataclasses import replace

from bench.planner_cases.cells import Row
from bench.planner_cases.report import contradictions
from bench.planner_cases.report.page import page_of
from bench.planner_cases.report.records import Part, merged
from tests.support.planner import record_rows as planner_rows


def _said(section: str, **changed: object) -> str:
    name, row = next(iter(planner_rows.run().sections[section].items()))
    return contradictions.sentence(Part(name=section, rows={name: row | changed}))


def test_a_sound_record_says_nothing() -> None:
    record = merged([planner_rows.run()])
    assert [contradictions.sentence(part) for part in record.parts.values()] == [""] * len(record.parts)


def test_an_answer_below_its_bound_is_named() -> None:
    text = _said("hetrl", step_s=10.0, bound_s=11.0)
    assert "A bound here is wrong" in text
    assert "our answer 10 s, bound 11 s" in text
    assert "verl" not in _said("hetrl", verl_step_s=1.0)
    assert "streamrl 1 s" in _said("hetrl", streamrl_step_s=1.0)


def test_a_familys_placement_counts_where_it_is_in_our_plan_space() -> None:
    for name in ("verl", "streamrl"):
        assert f"{name} 1 s" in _said("hetrl", **{f"{name}_step_s": 1.0, f"{name}_is_in_space": True})
        assert name not in _said("hetrl", **{f"{name}_step_s": 1.0, f"{name}_is_in_space": False})


def test_a_bound_that_was_reported_on_the_way_and_taken_back_is_named() -> None:
    trace = [[2.2, 16.75, 16.095], [2.3, 15.617, 15.5375]]
    assert "answer 15.617 s, bound 16.095 s" in _said("speed", step_s=15.617, trace=trace)


def test_one_type_cannot_beat_both_beyond_the_gap() -> None:
    assert "of h20 alone 9, of both 10" in _said("areal_hex", throughput_h20=9.0)
    assert "of h20 alone" not in _said("areal_hex", throughput_h20=9.95)


def test_the_page_shows_it() -> None:
    run = planner_rows.run()
    rows: dict[str, Row] = {name: row | {"bound_s": 1e6} for name, row in run.sections["hetrl"].items()}
    text, _ = page_of(merged([replace(run, sections={**run.sections, "hetrl": rows})]), "2026-11-22")
    assert text.count("**A bound here is wrong.**") == 1
