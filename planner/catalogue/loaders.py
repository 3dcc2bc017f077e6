"""Reads the packaged tables of `planner/data/`. Each has a header line and says where its rows come from."""

import csv
from pathlib import Path

Row = dict[str, str]
_DATA = Path(__file__).parent.parent / "data"


def packaged_rows(name: str) -> tuple[Row, ...]:
    """The rows of one packaged table; none if this installation has no such table."""
    path = _DATA / name
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))
