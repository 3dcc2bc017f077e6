"""Reads the rows of data files: JSON Lines, JSON arrays, CSV, Parquet and Arrow; the texts also compressed by gzip.

A row is a mapping from column names to values that JSON can hold, with the place where it stands for messages. Rows
come in the order of the file. Texts are UTF-8, with or without a byte order mark. Values of CSV are texts, as they are
written. Binary values of Parquet and Arrow are texts if they are UTF-8. NaN becomes None, as pandas writes it for a
missing value. Other values that JSON cannot hold, such as times, become their text.
"""

import codecs
import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

from periplus.errors import ConfigError, one_line

SUFFIXES = (".jsonl", ".json", ".csv", ".jsonl.gz", ".json.gz", ".csv.gz", ".parquet", ".arrow")
"""Endings of the files that can be read."""

MAX_REFUSALS = 5
"""Number of wrong rows that one error names. Chosen by hand: a file of the wrong kind is wrong in every row."""

BATCH_ROWS = 1024
"""Rows that are held beside each other as columns and as Python values. Chosen by hand."""

MAX_FIELD_CHARACTERS = 1 << 26
"""Largest value of a CSV file, in characters. Chosen by hand: Python's own bound, 131,072, is less than some tests of
programs have."""

_NOT_UTF_8 = re.compile("[\udc80-\udcff]")
"""What Python's `surrogateescape` makes of a byte that is not UTF-8: U+DC00 plus the byte."""

_OTHER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Byte order marks of encodings that are refused."""


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


class BinaryValue(str):
    """The words that stand in a row for bytes that are not UTF-8, such as an image: not a text of the data set."""

    __slots__ = ()


def suffix_of(path: Path) -> str | None:
    """Return the ending in SUFFIXES of a file's name, or None if it has none of them."""
    return next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)


def rows_of(path: Path) -> Iterator[Row | WrongRow]:
    """Yield the rows of a file in order; blank lines are skipped.

    Raises: ConfigError if the file cannot be read, or its kind is not known.
    """
    match (suffix_of(path) or "").removesuffix(".gz"):
        case ".jsonl":
            return _of_text(path, _json_lines)
        case ".json":
            return _of_text(path, _json_array)
        case ".csv":
            return _of_text(path, _csv)
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


# ---- texts -----------------------------------------------------------------------------------------------------------


def _of_text(path: Path, read: Callable[[Path, TextIO], Iterator[Row | WrongRow]]) -> Iterator[Row | WrongRow]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.peek(4)[:4]
            for mark, encoding in _OTHER_MARKS.items():
                if start.startswith(mark):
                    raise _unreadable(path, f"it is {encoding}", "save the file as UTF-8")
            # A byte that is not UTF-8 becomes half of a surrogate pair, which is refused with its line.
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
            yield from read(path, text)
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise _unreadable(path, getattr(error, "strerror", None) or one_line(error)) from error


def _json_lines(path: Path, file: TextIO) -> Iterator[Row | WrongRow]:
    # Iterate over the file's own lines: str.splitlines would also cut at separators inside a JSON text.
    for number, line in enumerate(file, start=1):
        # A file that was put together of several has a byte order mark where each of them begins.
        if text := line.removeprefix("\ufeff").strip():
            yield _row(f"{path}:{number}", _json_line, text)


def _json_array(path: Path, file: TextIO) -> Iterator[Row | WrongRow]:
    """Yield the objects of the file's one list; a file that does not begin with a list is read as JSON Lines."""
    text = file.read()
    if not text.lstrip().startswith("["):
        yield from _json_lines(path, io.StringIO(text))
        return
    try:
        values = _json_value(text)
    except ValueError as error:
        yield WrongRow(str(path), str(error))
        return
    for number, value in enumerate(values):
        yield _row(f"{path}, row {number}", _json_object, value)


def _csv(path: Path, file: TextIO) -> Iterator[Row | WrongRow]:
    csv.field_size_limit(MAX_FIELD_CHARACTERS)
    lines = csv.reader(file, strict=True)
    names = next(lines, [])
    if repeated := [name for name in names if names.count(name) > 1]:
        raise _unreadable(path, f"its first row, the names of the columns, has {repeated[0]!r} twice", "rename one")
    first_line = lines.line_num + 1
    for fields in lines:
        if fields:
            yield _row(f"{path}:{first_line}", _csv_values, names, fields)
        first_line = lines.line_num + 1


def _csv_values(names: list[str], fields: list[str]) -> Mapping[str, Any]:
    if len(fields) != len(names):
        raise ValueError(
            f"has {len(fields)} fields, but the first row names {len(names)} columns; put a field with commas, line "
            'ends or quotes between ", and double the quotes in it'
        )
    for field in fields:
        _check_characters(field)
    return dict(zip(names, fields, strict=True))


def _row(where: str, read: Callable[..., Mapping[str, Any]], *given: Any) -> Row | WrongRow:
    try:
        return Row(where, read(*given))
    except ValueError as error:
        return WrongRow(where, str(error))


def _json_line(text: str) -> Mapping[str, Any]:
    return _json_object(_json_value(text))


def _json_value(text: str) -> Any:
    _check_characters(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}; write one object a line, or one list of objects in a .json") from error


def _json_object(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise ValueError(f"holds {type(row).__name__}, not an object; write an object for each row")
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, which JSON allows but tokenizers do not
        raise ValueError("has half a surrogate pair, which is no character; write whole characters") from error
    return {str(name): _plain(value) for name, value in row.items()}


def _check_characters(text: str) -> None:
    """Refuse what decoding with `surrogateescape` made of bytes that are not UTF-8. Raises: ValueError."""
    if escaped := _NOT_UTF_8.search(text):
        raise ValueError(f"has the byte 0x{ord(escaped[0]) - 0xDC00:02x}, which is not UTF-8; save the file as UTF-8")


# ---- tables ----------------------------------------------------------------------------------------------------------


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
            for values in _widened(batch).to_pylist():
                yield Row(f"{path}, row {number}", {name: _plain(value) for name, value in values.items()})
                number += 1
    except UnicodeDecodeError as error:  # Arrow does not check its texts
        raise _unreadable(
            path, f"row {number} or one after it has text that is not UTF-8", "save it as UTF-8"
        ) from error
    except (OSError, pyarrow.ArrowException) as error:
        raise _unreadable(path, one_line(error)) from error


def _parquet_batches(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        yield from file.iter_batches(BATCH_ROWS)


def _widened(batch: Any) -> Any:
    """Return the batch with columns of narrow floats as the numbers that a person wrote: 0.1 is 0.1 as float32 too."""
    import numpy as np
    import pyarrow
    from pyarrow import types

    for at, field in enumerate(batch.schema):
        if types.is_float16(field.type) or types.is_float32(field.type):
            narrow = np.float16 if types.is_float16(field.type) else np.float32
            # The shortest text that the narrow type reads back as this value.
            values = [None if each is None else float(str(narrow(each))) for each in batch.column(at).to_pylist()]
            batch = batch.set_column(at, field.name, pyarrow.array(values, pyarrow.float64()))
    return batch


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
        case float() if math.isnan(value):
            return None
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return BinaryValue(f"{len(value)} bytes that are not UTF-8 text")
        case Decimal():
            return None if value.is_nan() else number_text(value)
        case _:
            return str(value)


def number_text(number: float | Decimal) -> str:
    """Return a number as a person writes it: 2 and not 2.0, and never with an exponent."""
    if not math.isfinite(number):
        return str(number)
    # The integer is exact; any other float has at most 17 significant digits, which `repr` finds.
    return str(int(number)) if number == int(number) else f"{Decimal(str(number)):f}".rstrip("0")


def _unreadable(path: Path, why: str, what_to_do: str = "give a file that you may read") -> ConfigError:
    return ConfigError(f"cannot read the data file {str(path)!r}: {why}; {what_to_do}")
