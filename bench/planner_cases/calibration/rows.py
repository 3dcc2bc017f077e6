"""Functions that turn rows of published tables into series, shared by all tables.

A row is what `csv.DictReader` yields. A value is read from a row by a function (`Value`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from bench.planner_cases.calibration.observations import MeasuredTerm, Numerics, Series
from planner.problem.architecture import Architecture

Row = dict[str, str]
"""One row of a table: column name to text."""
Value = Callable[[Row], float]
"""Function that reads one number from a row."""


def grouped(rows: Iterable[Row], *keys: str) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    """Yield (values of `keys`, rows with these values), sorted by the values."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    yield from sorted(groups.items())


def series_of(
    term: MeasuredTerm,
    source: str,
    gpu: str,
    model: str,
    rows: list[Row],
    columns: Mapping[str, Value],
    seconds: Value,
    *,
    arch: Architecture | None = None,
    tensor: int = 1,
    numerics: Numerics = Numerics.HALF,
    variant: str = "",
    link_bytes_per_s: float | None = None,
) -> Series:
    """Return one series of `rows`; `columns` and `seconds` say how its numbers are read from a row."""
    return Series(
        term=term,
        source=source,
        gpu=gpu,
        model=model,
        arch=arch,
        tensor=tensor,
        numerics=numerics,
        variant=variant,
        link_bytes_per_s=link_bytes_per_s,
        columns={name: np.array([value(row) for row in rows]) for name, value in columns.items()},
        seconds=np.array([seconds(row) for row in rows]),
    )


def number(column: str) -> Value:
    """Return a reader of that column."""
    return lambda row: float(row[column])


def milliseconds(column: str) -> Value:
    """Return a reader of that column, converted from milliseconds to seconds."""
    return lambda row: float(row[column]) / 1e3


def constant(value: float) -> Value:
    """Return a reader that gives the same value for every row, for facts that only the table's source states."""
    return lambda _: value
