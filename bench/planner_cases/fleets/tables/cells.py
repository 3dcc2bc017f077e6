"""Checked access to the cells of published tables."""

import math
from collections.abc import Mapping, Sequence

from periplus.errors import ConfigError

Row = Mapping[str, str]
"""One row of a table: column name to text."""


def need_columns(rows: Sequence[Row], names: Sequence[str], what: str) -> None:
    """Check that a table has rows and these columns. Raises: ConfigError."""
    if not rows:
        raise ConfigError(f"{what}: the table has no rows")
    if missing := [name for name in names if name not in rows[0]]:
        raise ConfigError(f"{what}: no column {', '.join(missing)}; the columns are {', '.join(rows[0])}")


def number(row: Row, name: str, what: str) -> float | None:
    """Return a finite number of at least 0, or None if the cell is empty.

    Raises: ConfigError, which names the cell.
    """
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
