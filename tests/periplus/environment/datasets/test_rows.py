"""Rows of data files: the same rows in each format, and what is told of files that cannot be read."""

import gzip
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from periplus.environment.datasets.rows import BATCH_ROWS, BinaryValue, Row, WrongRow, number_text, rows_of
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

    row = {"when": datetime.date(2026, 11, 23), "odd": float("inf"), "none": float("nan"), "parts": {"a": [None, True]}}
    (read,) = rows_of(write(tmp_path / "data.parquet", [row], "parquet"))
    assert isinstance(read, Row)
    assert read.values == {"when": "2026-11-23", "odd": "inf", "none": None, "parts": {"a": [None, True]}}


@pytest.mark.parametrize("kind", [pyarrow.float16(), pyarrow.float32(), pyarrow.float64()])
def test_narrow_floats_are_the_numbers_that_were_written(tmp_path: Path, kind: pyarrow.DataType) -> None:
    path = tmp_path / "data.parquet"
    parquet.write_table(pyarrow.table({"a": pyarrow.array([0.1, 2.5, None, float("nan")]).cast(kind)}), path)
    assert [values["a"] for values in values_of(path)] == [0.1, 2.5, None, None]


def values_of(path: Path) -> list[Mapping[str, Any]]:
    rows = list(rows_of(path))
    assert all(isinstance(row, Row) for row in rows), rows
    return [row.values for row in rows if isinstance(row, Row)]


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.binary(),
        pyarrow.large_binary(),
        pyarrow.binary(2),
        pyarrow.dictionary(pyarrow.int8(), pyarrow.binary()),
        pyarrow.list_(pyarrow.binary()),
        pyarrow.struct([("inner", pyarrow.large_binary())]),
    ],
    ids=str,
)
def test_bytes_that_are_utf_8_are_their_text_and_others_are_no_text(tmp_path: Path, kind: pyarrow.DataType) -> None:
    def within(value: Any) -> Any:
        nested = {pyarrow.lib.ListType: [value], pyarrow.lib.StructType: {"inner": value}}
        return nested.get(type(kind), value)

    column = pyarrow.array([within(b"42"), within("\u00f6".encode()), within(b"\xff\xd8")], kind)
    parquet.write_table(pyarrow.table({"answer": column}), tmp_path / "data.parquet")
    values = [each["answer"] for each in values_of(tmp_path / "data.parquet")]
    assert values == [within("42"), within("\u00f6"), within("2 bytes that are not UTF-8 text")]
    (binary,) = (
        values[2].values() if isinstance(values[2], dict) else [values[2]] if isinstance(values[2], str) else values[2]
    )
    assert isinstance(binary, BinaryValue)


def test_a_table_whose_texts_are_not_utf_8_is_refused(tmp_path: Path) -> None:
    offsets = pyarrow.py_buffer((0).to_bytes(4, "little") + (1).to_bytes(4, "little"))
    texts = pyarrow.StringArray.from_buffers(1, offsets, pyarrow.py_buffer(b"\xff"))
    parquet.write_table(pyarrow.table({"prompt": texts}), tmp_path / "data.parquet")
    with pytest.raises(ConfigError, match="text that is not UTF-8; save it as UTF-8"):
        list(rows_of(tmp_path / "data.parquet"))


CSV_TEXT = 'question,answer\r\n"two\nlines, ""quoted""",007\r\n\r\n1+1?,2.0\r\n'
CSV_ROWS = [{"question": 'two\nlines, "quoted"', "answer": "007"}, {"question": "1+1?", "answer": "2.0"}]
JSON_ROWS = [{"question": "a\u2028b", "answer": 2}, {"question": "c", "answer": None}]


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("data.csv", CSV_TEXT, CSV_ROWS),
        ("data.json", json.dumps(JSON_ROWS, indent=1), JSON_ROWS),
        ("data.json", "\n".join(map(json.dumps, JSON_ROWS)), JSON_ROWS),
        ("data.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in JSON_ROWS), JSON_ROWS),
    ],
    ids=["csv", "json array", "json lines in .json", "jsonl"],
)
def test_texts_are_read_with_and_without_a_byte_order_mark_and_compressed(
    tmp_path: Path, name: str, text: str, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode())
    assert values_of(path) == rows
    path.write_bytes(text.encode("utf-8-sig"))
    assert values_of(path) == rows
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode("utf-8-sig")))
    assert values_of(tmp_path / f"{name}.gz") == rows
    for encoding in ("utf-16", "utf-32"):
        path.write_bytes(text.encode(encoding))
        with pytest.raises(ConfigError, match=f"it is {encoding.upper()}; save the file as UTF-8"):
            list(rows_of(path))


def test_a_file_of_joined_files_may_have_a_byte_order_mark_in_each(tmp_path: Path) -> None:
    line = b'\xef\xbb\xbf{"prompt": "q"}\n'
    (tmp_path / "data.jsonl").write_bytes(line * 3)
    assert values_of(tmp_path / "data.jsonl") == [{"prompt": "q"}] * 3


def test_a_csv_row_that_does_not_fit_the_header_is_told_with_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b'a,b\n"1\n2",3\n4,5,6\n\xf6,7\n')
    _, long, latin = rows_of(tmp_path / "data.csv")
    assert isinstance(long, WrongRow)
    assert isinstance(latin, WrongRow)
    assert long.where.endswith(":4")
    assert "has 3 fields, but the first row names 2 columns" in long.why
    assert "has the byte 0xf6, which is not UTF-8" in latin.why
    (tmp_path / "data.csv").write_text("a,a\n1,2\n")
    with pytest.raises(ConfigError, match="has 'a' twice"):
        list(rows_of(tmp_path / "data.csv"))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (2.0, "2"),
        (-0.0, "0"),
        (2.5, "2.5"),
        (1e20, "100000000000000000000"),
        (2.0**60, "1152921504606846976"),
        (1e-7, "0.0000001"),
        (Decimal("2.00"), "2"),
        (Decimal("2.50"), "2.5"),
        (Decimal("1E+3"), "1000"),
    ],
)
def test_numbers_are_written_without_a_needless_point_or_exponent(number: float | Decimal, text: str) -> None:
    assert number_text(number) == text


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
    with pytest.raises(ConfigError, match=r"ends with \.jsonl, \.json, \.csv, .*\.arrow"):
        list(rows_of(tmp_path / "data.txt"))
