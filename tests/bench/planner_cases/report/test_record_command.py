"""The command writes the record with its pictures, and lists it."""

import json
import sys
from pathlib import Path

import pytest

from bench.planner_cases import record as planner_record
from tests.support.planner import record_rows as planner_rows


@pytest.fixture
def record(tmp_path: Path) -> Path:
    run = planner_rows.run(leave_out=lambda section, cell: section not in ("speed", "oracle"))
    content = {
        "config": {"quick": False, "seed": 0},
        "machine": run.machine,
        "results": {name: {"rows": rows} for name, rows in run.sections.items()},
    }
    path = tmp_path / "record.json"
    path.write_text(json.dumps(content))
    return path


def _main(monkeypatch: pytest.MonkeyPatch, *arguments: Path | str) -> int:
    monkeypatch.setattr(sys, "argv", ["planner_record", *map(str, arguments)])
    return planner_record.main()


def test_text_and_pictures_are_written_and_old_pictures_go(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "docs" / "records"
    folder.mkdir(parents=True)
    (folder / "2026-11-22-time.svg").write_text("old")
    (folder / "2026-11-21.md").write_text("older")
    index = tmp_path / "docs" / "index.md"
    index.write_text("# Index\n\n## Records\n\nThese:\n\n- [2026-11-20](records/2026-11-20.md)\n")
    assert _main(monkeypatch, record, "--output", folder / "2026-11-22.md", "--index", index) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["2026-11-21.md", "2026-11-22-speed.svg", "2026-11-22.md"]
    links = "- [2026-11-22](records/2026-11-22.md)\n- [2026-11-21](records/2026-11-21.md)\n"
    assert index.read_text() == f"# Index\n\n## Records\n\nThese:\n\n{links}"


def test_what_cannot_be_read_is_an_error_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(monkeypatch, tmp_path / "none.json", "--output", tmp_path / "2026-11-22.md") == 2
    assert "none.json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
