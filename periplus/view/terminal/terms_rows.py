"""Rows of the live view that show what the plan predicted of a step beside what was measured, one for each region."""

from collections.abc import Sequence

from rich.table import Column, Table
from rich.text import Text

from periplus.view import units
from periplus.view.state import printable
from periplus.view.terms import Term, figure

_LABEL_CELLS = 22
"""Columns of the first one, which names the region: the heading of the job's own row fits."""


def terms_rows(terms: Sequence[Term], num_rows: int) -> Table:
    """Return the first `num_rows` rows: that of the whole job, then regions by name."""
    regions = list(dict.fromkeys(each.region for each in terms))[:num_rows]
    rows = [[each for each in terms if each.region == region] for region in regions]
    num_columns = max(map(len, rows), default=0)
    columns = [Column(ratio=1, no_wrap=True, overflow="ellipsis") for _ in range(num_columns)]
    grid = Table.grid(Column(width=_LABEL_CELLS, no_wrap=True, overflow="ellipsis"), *columns, expand=True)
    for region, row in zip(regions, rows, strict=True):
        label = Text(f" {printable(region) or 'predicted → measured'}", style="dim")
        grid.add_row(label, *map(_cell, row), *[Text()] * (num_columns - len(row)))
    return grid


def _cell(term: Term) -> Text:
    # The unit stands once, behind the measured figure.
    predicted, measured = (figure(value, term.unit) or units.UNKNOWN for value in (term.predicted, term.measured))
    word = term.name.partition(" ")[0]
    return Text.assemble((f"{word} {predicted.removesuffix(' s')}→", "dim"), (measured, "bold"))
