"""The record of the planner's comparison says what was measured, and what was not."""

import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from bench.planner import SECTIONS
from bench.planner_cases.cells import Rows
from bench.planner_cases.report.completeness import FIGURES
from bench.planner_cases.report.page import HONEST, PICTURES, page_of
from bench.planner_cases.report.ratios_picture import ratios_svg
from bench.planner_cases.report.records import Run, merged
from bench.planner_cases.report.scatter_picture import scatter_svg
from bench.planner_cases.report.speed_picture import speed_svg
from bench.planner_cases.report.time_picture import time_svg
from tests.support.planner import record_rows as planner_rows


def _page(run: Run) -> tuple[str, dict[str, str]]:
    return page_of(merged([run]), "2026-11-22")


@pytest.fixture(scope="module")
def whole() -> tuple[str, dict[str, str]]:
    return _page(planner_rows.run())


def _with(run: Run, section: str, rows: Rows) -> Run:
    return replace(run, sections={**run.sections, section: rows})


def _flat(text: str) -> str:
    return " ".join(text.split())


def test_what_is_re_implemented_simulated_and_guessed_is_always_said(whole: tuple[str, dict[str, str]]) -> None:
    nothing, _ = _page(planner_rows.run(leave_out=lambda section, cell: True))
    for text in (_flat(whole[0]), _flat(nothing)):
        assert all(_flat(sentence) in text for sentence in HONEST)
        assert "multi-country: bandwidth: nothing is published" in text
        assert "lengths: lognormal" in text


def test_a_whole_record_has_every_section_and_picture(whole: tuple[str, dict[str, str]]) -> None:
    text, pictures = whole
    assert "not complete" not in text.lower()
    assert "All sections are complete." in _flat(text)
    assert "Complete: 48 of 48 pieces run (commit 0123456)." in _flat(text)
    assert sorted(pictures) == [f"2026-11-22-{name}.svg" for name in sorted(PICTURES)]
    assert all(f"]({name})" in text for name in pictures)


def test_figures_stand_beside_their_targets(whole: tuple[str, dict[str, str]]) -> None:
    text, _ = whole
    assert "| `bruteforce_mismatches` | 1 | cases | == 0 | **missed** |" in text
    assert "| `real_s_max` | 3 | s | <= 5 | held |" in text
    assert "| `one_percent_s_10000` | 60.2 | s | <= 15 | **missed** |" in text
    assert "| `cost_memory_error_mean` | - |  |  | **not measured**: 1 of 1 piece run |" in text


def test_every_table_row_has_as_many_cells_as_its_heading(whole: tuple[str, dict[str, str]]) -> None:
    widths: set[int] = set()
    for line in whole[0].splitlines():
        widths = widths | {line.count("|")} if line.startswith("|") else set()
        assert len(widths) <= 1, line


def test_a_section_that_was_not_run_in_full_says_so_and_its_figures_do_not_count() -> None:
    text, _ = _page(planner_rows.run(leave_out=lambda section, cell: (section, cell) == ("real", "fleet 03")))
    assert "**Not complete**: 19 of 20 pieces run" in _flat(text)
    assert "Not run: fleet 03." in _flat(text)
    assert "| `real_s_max` | 3 | s | <= 5 | not a figure yet: 19 of 20 pieces run |" in text
    assert "Not complete or not measured: `real`." in _flat(text)


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_any_section_may_be_missing(section: str) -> None:
    text, _ = _page(planner_rows.run(leave_out=lambda name, cell: name == section))
    assert text.count("**Not measured**: none of its") == 1
    assert all(f"| `{figure}` | - |  |  | **not measured**: 0 of" in text for figure in FIGURES[section])


def test_a_piece_that_failed_is_named_with_its_error() -> None:
    run = planner_rows.run()
    text, _ = _page(_with(run, "real", dict(run.sections["real"]) | {"fleet 03": {"error": "ValueError: no plan"}}))
    assert "Failed: fleet 03 (`ValueError: no plan`)." in _flat(text)


def test_a_picture_of_a_part_says_that_it_is_one() -> None:
    _, pictures = _page(planner_rows.run(leave_out=lambda section, cell: "PPO" in cell.upper() and section == "speed"))
    assert "Only 6 of 12 pieces were run." in pictures["2026-11-22-speed.svg"]
    assert "pieces were run" not in pictures["2026-11-22-ratios.svg"]


def test_a_quick_record_and_pieces_that_shared_the_machine_are_told_apart() -> None:
    assert "Quick sizes" in _flat(_page(planner_rows.run(quick=True))[0])
    run = planner_rows.run()
    shared = {name: row | {"jobs": 2} for name, row in run.sections["real"].items()}
    text, _ = _page(_with(run, "real", shared))
    assert "up to 2 pieces at once, so seconds are of a shared machine" in _flat(text)


def test_pictures_are_documents_that_read_well_in_the_dark_and_need_nothing_else(
    whole: tuple[str, dict[str, str]],
) -> None:
    for svg in whole[1].values():
        root = ElementTree.fromstring(svg)
        assert root.attrib["width"] == "980"
        assert "prefers-color-scheme:dark" in svg
        assert "href" not in svg
        assert "nan" not in svg.lower().replace("nance", "")


def test_words_of_a_record_cannot_become_markup_in_its_pictures() -> None:
    evil = "<b a='1'>&\""
    sections = planner_rows.run().sections
    hetrl, speed = list(sections["hetrl"].values()), list(sections["speed"].values())
    for svg in (
        ratios_svg(hetrl, evil),
        time_svg(hetrl, evil),
        speed_svg(speed, evil),
        scatter_svg(sections["simulation"], evil),
    ):
        words = [text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
        assert evil in words


def test_the_pictures_say_what_they_compare_with(whole: tuple[str, dict[str, str]]) -> None:
    ratios, speed, simulation = (whole[1][f"2026-11-22-{name}.svg"] for name in ("ratios", "speed", "simulation"))
    assert "HetRL publishes 1.51 to 2.05" in ratios
    assert "Other problems, for context" in speed
    assert "Simulated throughput is simulated" in simulation


def test_a_method_without_a_placement_and_a_family_without_one_do_not_fail() -> None:
    run = planner_rows.run()
    rows = {
        name: row
        | {
            "step_s": math.inf,
            "bound_s": None,
            "gap": 1.0,
            "one_percent_s": None,
            "first_s": None,
            "simulated_step_s": None,
            "simulated_error": None,
            "verl_ratio": None,
            "verl_ratio_at_most": None,
            "streamrl_ratio": None,
            "streamrl_ratio_at_most": None,
            "by_time": {method: dict.fromkeys(times) for method, times in row["by_time"].items()},
        }
        for name, row in run.sections["hetrl"].items()
    }
    text, _ = _page(_with(run, "hetrl", rows))
    assert "No ratio stands beside a published range." in text
    assert "| `auto` | none; 48 without |" in text


@pytest.mark.parametrize(("section", "lost"), [("real", "regions"), ("hetrl", "by_time"), ("speed", "num_gpus")])
def test_rows_of_another_version_of_the_benchmark_are_refused(section: str, lost: str) -> None:
    run = planner_rows.run()
    rows = {name: {k: v for k, v in row.items() if k != lost} for name, row in run.sections[section].items()}
    with pytest.raises(ValueError, match=f"{section}: rows without '{lost}'"):
        _page(_with(run, section, rows))


def test_rows_without_pairs_have_no_picture_of_the_simulation() -> None:
    run = planner_rows.run()
    rows = {
        name: row | {"compared": [{k: v for k, v in each.items() if k != "pairs"} for each in row["compared"]]}
        for name, row in run.sections["simulation"].items()
    }
    text, pictures = _page(_with(run, "simulation", rows))
    assert "2026-11-22-simulation.svg" not in pictures
    assert "so there is no picture" in _flat(text)
