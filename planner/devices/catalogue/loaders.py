"""Reader of the packaged tables in `planner/data`.

Each table is a CSV file with a header line. Most have a column that names the source of each row.
"""

import csv
from pathlib import Path

Row = dict[str, str]
"""One row of a table: column name to text."""
_DATA = Path(__file__).parents[2] / "data"


def packaged_rows(name: str) -> tuple[Row, ...]:
    """Return the rows of one packaged table; none if this installation does not have the table."""
    path = _DATA / name
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))
