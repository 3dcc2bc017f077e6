"""Title above and notes below the pictures of the planner's record. Numbers are pixels."""

from collections.abc import Sequence

from bench.planner_cases.report import drawing
from periplus.view.svg import Markup

WIDTH = 980.0
MARGIN = 28.0
NOTE = 12.0
"""Size of notes and of an axis' numbers."""


def head(title: str, lines: Sequence[str]) -> tuple[list[Markup], float]:
    """The title and lines below it, wrapped; and the baseline of the last."""
    shapes, y = [drawing.text(MARGIN, 40, title, size=19, bold=True)], 40.0
    for words in (part for line in lines if line for part in drawing.wrapped(line, WIDTH - 2 * MARGIN, 13)):
        y += 20
        shapes.append(drawing.text(MARGIN, y, words, size=13, colour="soft"))
    return shapes, y


def notes(lines: Sequence[str], y: float) -> tuple[list[Markup], float]:
    """Lines below a picture, wrapped; and where they end."""
    shapes = []
    for words in (part for line in lines for part in drawing.wrapped(line, WIDTH - 2 * MARGIN, NOTE)):
        shapes.append(drawing.text(MARGIN, y, words, size=NOTE, colour="soft"))
        y += 17
    return shapes, y
