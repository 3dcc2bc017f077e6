"""Rows of published tables as series: what all tables have in common. A row is what `csv.DictReader` yields."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from planner.calibration.observations import Numerics, Series, Term
from planner.question.architecture import Architecture

Row = dict[str, str]
Value = Callable[[Row], float]


def grouped(rows: Iterable[Row], *keys: str) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    """Rows that agree in `keys`, sorted by what they agree in."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    yield from sorted(groups.items())


def series_of(
    term: Term,
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
    """One series of `rows`; `columns` and `seconds` say how its numbers are read from a row."""
    return Series(
        term=term, source=source, gpu=gpu, model=model, arch=arch, tensor=tensor, numerics=numerics, variant=variant,
        link_bytes_per_s=link_bytes_per_s,
        columns={name: np.array([value(row) for row in rows]) for name, value in columns.items()},
        seconds=np.array([seconds(row) for row in rows]),
    )  # fmt: skip


def number(column: str) -> Value:
    """That column."""
    return lambda row: float(row[column])


def milliseconds(column: str) -> Value:
    """Seconds of a column in milliseconds."""
    return lambda row: float(row[column]) / 1e3


def constant(value: float) -> Value:
    """What a table does not say and its source does."""
    return lambda _: value
