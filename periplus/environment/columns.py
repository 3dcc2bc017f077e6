"""Finds a column of a data set's row by name, or a value inside it by a dotted path."""

from collections.abc import Mapping
from typing import Any


def value_at(row: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return the value of a column, or `default` if the row has none of this name.

    `reward_model.ground_truth` is the value `ground_truth` in the column `reward_model`, unless the row has a column
    with the whole name.
    """
    if name in row:
        return row[name]
    head, dot, rest = name.partition(".")
    inner = row.get(head)
    return value_at(inner, rest, default) if dot and isinstance(inner, Mapping) else default
