"""Rows of data files: the same rows in each format, and what is told of files that cannot be read."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from periplus.environment.datasets.rows import BATCH_ROWS, Row, WrongRow, rows_of
from periplus.errors import ConfigError

NUM_ROWS = 2 * BATCH_ROWS + 7
ROWS: list[dict[str, Any]] = [
    {"prompt": f"q{n}", "answer": n, "tags": [f"t{n % 3}"], "half": n / 2} for n in range(NUM_ROWS)
]


def write(path: Path, rows: list[dict[str, Any]], kind: str) -> Path:
    table = pyarrow.Table.from_pylist(rows)
    match kind:
        case "jsonl":
            path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
        case "parquet":
            parquet.write_table(table, path, row_group_size=100)
        case "arrow stream":
            with ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=500)
        case "arrow file":
            with ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=500)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow stream", "arrow file"])
def test_each_format_gives_the_same_rows_in_order(tmp_path: Path, kind: str) -> None:
    rows = list(rows_of(write(tmp_path / f"data.{kind.split()[0]}", ROWS, kind)))
    assert [row.values for row in rows if isinstance(row, Row)] == ROWS
    assert rows[8].where.endswith(":9" if kind == "jsonl" else ", row 8")


def test_values_that_json_cannot_hold_become_text(tmp_path: Path) -> None:
    import datetime

    row = {"when": datetime.date(2026, 11, 23), "image": b"12345", "odd": float("inf"), "parts": {"a": [None, True]}}
    (read,) = rows_of(write(tmp_path / "data.parquet", [row], "parquet"))
    assert isinstance(read, Row)
    assert read.values == {"when": "2026-11-23", "image": "5 bytes", "odd": "inf", "parts": {"a": [None, True]}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"prompt": "q"}\n{oops', "is not JSON"),
        ("[1]", "holds list"),
        ('{"a": "\\ud800"}', "half a surrogate pair"),
    ],
)
def test_a_line_that_is_no_row_is_told_with_its_place(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    wrong = list(rows_of(path))[-1]
    assert isinstance(wrong, WrongRow)
    assert wrong.where == f"{path}:{len(text.splitlines())}"
    assert why in wrong.why


def test_bytes_that_are_not_utf_8_are_named_with_their_line_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    lines = [b'{"prompt": "Gr\xc3\xb6sse", "answer": "a"}'] * 9000
    lines[4000] = lines[8000] = b'{"prompt": "Gr\xf6sse", "answer": "a"}'
    path.write_bytes(b"\n".join(lines))
    wrong = [row for row in rows_of(path) if isinstance(row, WrongRow)]
    assert [row.where for row in wrong] == [f"{path}:4001", f"{path}:8001"]
    assert wrong[0].why == "has the byte 0xf6, which is not UTF-8; save the file as UTF-8"


@pytest.mark.parametrize("name", ["absent.jsonl", "absent.parquet", "absent.arrow"])
def test_a_missing_file_is_the_operators_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot read the data file"):
        list(rows_of(tmp_path / name))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_damaged_file_is_the_operators_error(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"data.{suffix}", ROWS, "parquet" if suffix == "parquet" else "arrow stream")
    path.write_bytes(path.read_bytes()[:2000] + bytes(300))
    with pytest.raises(ConfigError, match="cannot read the data file"):
        list(rows_of(path))


def test_a_file_of_another_kind_is_refused_with_those_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.jsonl, \.parquet, \.arrow"):
        list(rows_of(tmp_path / "data.csv"))
