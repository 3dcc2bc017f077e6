"""Turns what the scripts of this folder found into one page of Markdown.

The page begins with a table of all scripts, in which one that failed is `not measured`, with the reason. Figures with
targets follow, then a section for each script that measured: its numbers, and each of its tables.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOT_MEASURED = "not measured"
"""Outcome of a script that failed, and value of a figure that there is none of."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOutcome:
    """What one script found: its record, or None and the reason why there is none. `wall_s` is in seconds."""

    name: str
    record: Row | None
    reason: str
    wall_s: float

    def as_json(self) -> Row:
        """Return the record, or one that says that nothing was measured and why."""
        if self.record is not None:
            return self.record
        return {"bench": f"gpu_{self.name}", "not_measured": self.reason, "wall_s": round(self.wall_s, 1)}


def markdown(outcomes: Sequence[ScriptOutcome]) -> str:
    """Return the page, which ends with a line break."""
    devices = sorted({each.record["machine"]["device"] for each in outcomes if each.record is not None})
    lines = [
        f"# Measurements on {', '.join(devices) or 'a GPU'}",
        "",
        *_table(("script", "outcome", "wall s", "reason"), _overview(outcomes)),
    ]
    reach = [row for each in outcomes if each.record is not None for row in each.record["reach"]]
    if reach:
        lines += ["", "## Targets", ""]
        lines += _table(("figure", "value", "unit", "target", "reached"), (_reached(row) for row in reach))
    for each in outcomes:
        if each.record is not None:
            lines += ["", f"## {each.name}", "", *_section(each.record)]
    return "\n".join(lines) + "\n"


def _overview(outcomes: Sequence[ScriptOutcome]) -> Iterator[tuple[str, ...]]:
    for each in outcomes:
        outcome = NOT_MEASURED if each.record is None else "measured"
        yield each.name, outcome, f"{each.wall_s:.0f}", _cell(each.reason)


def _reached(row: Row) -> tuple[str, ...]:
    words = {"<=": "at most", ">=": "at least"}
    target = f"{words[row['op']]} {_cell(row['target'])}"
    return f"`{row['name']}`", _cell(row["value"]), row["unit"], target, "yes" if row["ok"] else "**no**"


def _section(record: Row) -> Iterator[str]:
    about = {**record["machine"], **{key: value for key, value in record["config"].items() if value is not None}}
    yield f"Commit {record['commit']}; " + ", ".join(f"{key} {_cell(value)}" for key, value in about.items()) + "."
    numbers = dict(_numbers("", record["results"]))
    if numbers:
        yield ""
        yield from _table(("figure", "value"), ((f"`{key}`", _cell(value)) for key, value in numbers.items()))
    for name, rows in record["results"].items():
        if _is_table(rows):
            columns = tuple(rows[0])
            yield from ("", f"### {name}", "")
            yield from _table(columns, ([_cell(row.get(column)) for column in columns] for row in rows))


def _numbers(prefix: str, values: Row) -> Iterator[tuple[str, Any]]:
    # Values by name; those of mappings within have the names of both, and tables are left out.
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(f"{prefix}{key}.", value)
        elif not isinstance(value, list):
            yield f"{prefix}{key}", value


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _table(columns: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _cell(value: Any) -> str:
    match value:
        case None:
            return NOT_MEASURED
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
        case list():
            return " ".join(_cell(each) for each in value)
        case _:
            # A line break or a bar would end the cell.
            return " ".join(str(value).split()).replace("|", "\\|")
