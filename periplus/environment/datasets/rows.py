"""Reads the rows of data files: JSON Lines, Parquet and Arrow.

A row is a mapping from column names to values that JSON can hold, with the place where it stands for messages. Rows
come in the order of the file. Values that JSON cannot hold, such as images and times, become their text.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from periplus.errors import ConfigError, one_line

SUFFIXES = (".jsonl", ".parquet", ".arrow")
"""Endings of the files that can be read."""

MAX_REFUSALS = 5
"""Number of wrong rows that one error names. Chosen by hand: a file of the wrong kind is wrong in every row."""

BATCH_ROWS = 1024
"""Rows that are held beside each other as columns and as Python values. Chosen by hand."""

_NOT_UTF_8 = re.compile("[\udc80-\udcff]")
"""What Python's `surrogateescape` makes of a byte that is not UTF-8: U+DC00 plus the byte."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: where it stands, as FILE:LINE or as FILE with the row's number, and its values by column."""

    where: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WrongRow:
    """A place of a file that holds no row, and why."""

    where: str
    why: str


def rows_of(path: Path) -> Iterator[Row | WrongRow]:
    """Yield the rows of a file in order; blank lines are skipped.

    Raises: ConfigError if the file cannot be read, or its kind is not known.
    """
    match path.suffix:
        case ".jsonl":
            return _json_lines(path)
        case ".parquet" | ".arrow":
            return _table(path)
        case _:
            raise ConfigError(
                f"the data file {str(path)!r} is of no kind that can be read; give a file that ends with "
                f"{', '.join(SUFFIXES)}"
            )


def raise_refusals(refusals: list[str]) -> None:
    """Raise one ConfigError for all wrong rows, which names the first ones; do nothing if there are none."""
    if refusals:
        more = f"\nand {len(refusals) - MAX_REFUSALS} rows more" if len(refusals) > MAX_REFUSALS else ""
        raise ConfigError("\n".join(refusals[:MAX_REFUSALS]) + more)


def _json_lines(path: Path) -> Iterator[Row | WrongRow]:
    try:
        # Iterate over the file's own lines: str.splitlines would also cut at separators inside a JSON text. A byte that
        # is not UTF-8 becomes half of a surrogate pair, which `_json_row` refuses with its line.
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{path}:{number}"
                    try:
                        yield Row(where, _json_row(line))
                    except ValueError as error:
                        yield WrongRow(where, str(error))
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error


def _json_row(line: str) -> Mapping[str, Any]:
    # Bytes that are not UTF-8 came through decoding as single surrogates (surrogateescape).
    if escaped := _NOT_UTF_8.search(line):
        raise ValueError(f"has the byte 0x{ord(escaped[0]) - 0xDC00:02x}, which is not UTF-8; save the file as UTF-8")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}; write one object a line") from error
    if not isinstance(row, Mapping):
        raise ValueError(f"holds {type(row).__name__}, not an object; write one object a line")
    try:
        line.encode()
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, which JSON allows but tokenizers do not
        raise ValueError("has half a surrogate pair, which is no character; write whole characters") from error
    return {str(name): _plain(value) for name, value in row.items()}


def _table(path: Path) -> Iterator[Row | WrongRow]:
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the data file {str(path)!r} needs pyarrow, which is not installed here; pip install 'periplus[train]'"
        ) from error
    number = 0
    try:
        for batch in _parquet_batches(path) if path.suffix == ".parquet" else _arrow_batches(path):
            for values in batch.to_pylist():
                yield Row(f"{path}, row {number}", {name: _plain(value) for name, value in values.items()})
                number += 1
    except (OSError, pyarrow.ArrowException) as error:
        raise _unreadable(path, one_line(error)) from error


def _parquet_batches(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        yield from file.iter_batches(BATCH_ROWS)


def _arrow_batches(path: Path) -> Iterator[Any]:
    # The library `datasets` writes streams; other programs write files, which have a magic number.
    from pyarrow import ipc, memory_map

    with memory_map(str(path)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        reader = ipc.open_file(source) if is_file else ipc.open_stream(source)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else reader
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


def _plain(value: Any) -> Any:
    """Return the value as JSON holds it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case bytes():
            return f"{len(value)} bytes"
        case _:
            return str(value)


def _unreadable(path: Path, why: str) -> ConfigError:
    return ConfigError(f"cannot read the data file {str(path)!r}: {why}; give a file that you may read")
