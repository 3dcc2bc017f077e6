"""Elements that the panels of the live view share: a titled frame, and a curve with its axes."""

from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from periplus.view.state import Point
from periplus.view.terminal.blocks import curve

TITLE = "bold default"
"""Style of a panel's title. It names a colour, because a title would inherit that of the frame."""
_LABEL_CELLS = 4
"""Longest label of the y axis where fewer labels would be shorter: 0.25 and 12.5 fit, 1.333 does not."""


def panel(title: str, content: RenderableType) -> Panel:
    """Return the content in a frame with a title."""
    heading = Text(title, style=TITLE)
    return Panel(
        content, title=heading, title_align="left", border_style="bright_black", box=box.ROUNDED, padding=(0, 1)
    )


def axes(points: Sequence[Point], steps: tuple[int, int], y_range: tuple[float, float], size: tuple[int, int]) -> Text:
    """Return the curve of the points over the range of steps. `size` is (columns, rows) in cells, with the labels."""
    # The last row is for the labels of the steps.
    columns, rows = size[0], size[1] - 1
    labels = _labels(y_range, rows)
    label_cells = max(map(len, labels.values()))
    # To the left of the curve stand the label, a space and the axis.
    columns -= label_cells + 2
    drawn = curve([(point.step, point.value) for point in points], steps, y_range, (columns, rows))
    text = Text(no_wrap=True, overflow="crop")
    for row, line in enumerate(drawn):
        text.append(f"{labels.get(row, ''):>{label_cells}} ", style="dim")
        text.append("┤" if row in labels else "│", style="bright_black")
        text.append(f"{line}\n", style="cyan")
    # The last step's label ends where the curve ends.
    first, last = f"{steps[0]:,}", f"step {steps[1]:,}"
    text.append(f"{' ' * (label_cells + 1)}{first}{last:>{columns + 1 - len(first)}}", style="dim")
    return text


def _labels(y_range: tuple[float, float], rows: int) -> dict[int, str]:
    """Return the labels of the y axis by row: evenly spaced, and as many as fit the rows and have short numbers."""
    low, high = y_range
    for parts in (4, 3, 2, 1):
        labels = [f"{high - (high - low) * i / parts:.4g}" for i in range(parts + 1)]
        has_rows = (rows - 1) % parts == 0 and rows - 1 >= 2 * parts
        if parts == 1 or (has_rows and max(map(len, labels)) <= _LABEL_CELLS):
            break
    return {(rows - 1) * i // parts: label for i, label in enumerate(labels)}
