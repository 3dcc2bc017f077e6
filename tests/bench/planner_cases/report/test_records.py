"""Runs of the planner's benchmark are put together, and what is missing of them is known."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.planner_cases.cells import Store
from bench.planner_cases.report.records import Run, merged, read
from tests.support.planner import record_rows as planner_rows


def _written(run: Run, path: Path) -> Path:
    record: dict[str, object] = {
        "bench": "planner",
        "commit": "0123456789abcdef",
        "machine": run.machine,
        "config": {"quick": run.quick, "seed": run.seed, "sections": list(run.sections), "jobs": 1},
        "results": {name: {"rows": rows} for name, rows in run.sections.items()} | {"not_measured": {}},
        "reach": [],
    }
    path.write_text(f"{json.dumps(record)}\n")
    return path


def test_a_printed_record_is_read_back(tmp_path: Path) -> None:
    run = planner_rows.run()
    assert read(_written(run, tmp_path / "record.json")) == Run(
        quick=False, seed=0, machine=run.machine, sections=json.loads(json.dumps(run.sections))
    )


def test_a_folder_of_kept_rows_is_read_by_the_names_of_the_benchmarks_pieces(tmp_path: Path) -> None:
    run = planner_rows.run(leave_out=lambda section, cell: section != "speed" or "ppo" in cell)
    store = Store(folder=tmp_path, settings=planner_rows.FULL, commit="")
    for name, row in run.sections["speed"].items():
        store.keep("speed", name, row)
    for folder in (tmp_path, tmp_path / "full-0"):
        found = read(folder)
        assert found.sections["speed"] == run.sections["speed"]
        assert found.machine is None
    part = merged([found]).parts["speed"]
    assert len(part.rows) == len(part.left) == 6
    assert not part.is_whole


@pytest.mark.parametrize("text", ["", "no record", "{}", "[1]"])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(ValueError, match=r"not a record of bench\.planner"):
        read(tmp_path / "record.json")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are 0"):
        read(tmp_path)


def test_partial_runs_add_up_to_a_whole_one() -> None:
    first = planner_rows.run(leave_out=lambda section, cell: section != "hetrl" or "ppo" in cell)
    second = planner_rows.run(leave_out=lambda section, cell: section != "hetrl" or "grpo" in cell)
    assert not merged([first]).parts["hetrl"].is_whole
    both = merged([first, second]).parts["hetrl"]
    assert both.is_whole
    assert list(both.rows) == list(planner_rows.run().sections["hetrl"])


def test_a_run_of_chosen_pieces_is_not_whole_whatever_its_own_record_says() -> None:
    part = merged([planner_rows.run(leave_out=lambda section, cell: cell != "fleet 00")]).parts["real"]
    assert (len(part.rows), len(part.left), part.num_cells) == (1, 19, 20)
    assert [row["name"] for row in part.reach] == ["real_gap_max", "real_s_max"]


def test_a_piece_that_was_measured_in_another_run_has_not_failed() -> None:
    whole = planner_rows.run()
    failed = replace(whole, sections={"real": {"fleet 03": {"error": "TimeoutError: "}}})
    assert merged([failed]).parts["real"].failed == {"fleet 03": "TimeoutError: "}
    assert merged([failed, whole]).parts["real"].is_whole


def test_two_answers_for_one_piece_are_refused() -> None:
    first = planner_rows.run()
    second = replace(
        first, sections={"real": {"fleet 03": first.sections["real"]["fleet 03"] | {"throughput_gap": 0.5}}}
    )
    assert merged([first, first]).parts["real"].is_whole
    with pytest.raises(ValueError, match="real fleet 03: two runs say different things"):
        merged([first, second])


def test_sizes_and_unknown_pieces_are_not_mixed_in() -> None:
    with pytest.raises(ValueError, match="one size"):
        merged([planner_rows.run(), planner_rows.run(quick=True)])
    with pytest.raises(ValueError, match="no piece 'other'"):
        merged([replace(planner_rows.run(), sections={"real": {"other": {}}})])
