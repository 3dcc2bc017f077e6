"""Aligned columns of text for a terminal."""

from collections.abc import Sequence


def columns(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return rows under their headings; empty if there are no rows.

    `right` holds the indices of columns that are aligned to the right.
    """
    if not rows:
        return ""
    table = [list(headings), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(headings))]
    lines = []
    for row in table:
        cells = [
            text.rjust(w) if i in right else text.ljust(w) for i, (text, w) in enumerate(zip(row, widths, strict=True))
        ]
        # Spaces at the end of a line would only show up in tests and diffs.
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
