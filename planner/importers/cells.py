"""Cells of imported tables: numbers that are numbers, columns that are there."""

import math
from collections.abc import Mapping, Sequence

from periplus.errors import ConfigError

Row = Mapping[str, str]


def need_columns(rows: Sequence[Row], names: Sequence[str], what: str) -> None:
    """Raises: ConfigError if the table is empty or lacks a column."""
    if not rows:
        raise ConfigError(f"{what}: the table has no rows")
    if missing := [name for name in names if name not in rows[0]]:
        raise ConfigError(f"{what}: no column {', '.join(missing)}; the columns are {', '.join(rows[0])}")


def number(row: Row, name: str, what: str) -> float | None:
    """A finite number from 0, or None where the cell is empty. Raises: ConfigError naming the cell."""
    text = row[name].strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"{what}: {name} is {text!r}, but must be a number or empty") from error
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"{what}: {name} is {text!r}, but must be a finite number from 0")
    return value
