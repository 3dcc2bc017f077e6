"""Bars and curves made of characters.

Bars are drawn in eighths of a cell with block characters. Curves are drawn with braille characters, which have 2 x 4
dots in a cell.
"""

import math
from collections.abc import Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉█"
# Bit of the dot at [column][row] of a braille character; rows go down.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def bar(fraction: float, num_cells: int) -> str:
    """Return a bar that fills `fraction` of the cells. It is visible for every fraction above 0."""
    if not fraction > 0:
        return ""
    eighths = max(1, round(min(1.0, fraction) * num_cells * 8))
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def curve(
    points: Sequence[tuple[float, float]],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    size: tuple[int, int],
) -> list[str]:
    """Return the rows of a curve in braille, top first: the mean of the points in each dot column, joined by lines.

    `size` is (columns, rows) in cells. Ranges must not be empty. Points outside of them are drawn on the edge.
    """
    columns, rows = size
    grid = [[0] * columns for _ in range(rows)]
    previous: tuple[int, int] | None = None
    # A braille cell has 2 x 4 dots, each one bit of the character: mark the bits of a line from dot to dot.
    for dot in _dots(points, x_range, y_range, (columns * 2, rows * 4)):
        for x, y in _line(previous or dot, dot):
            grid[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
        previous = dot
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in grid]


def _dots(
    points: Sequence[tuple[float, float]],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    dots: tuple[int, int],
) -> list[tuple[int, int]]:
    # [columns] values that fall into one column of dots; their mean is drawn.
    by_column: dict[int, list[float]] = {}
    for x, y in points:
        if math.isfinite(y):
            by_column.setdefault(_scaled(x, x_range, dots[0]), []).append(y)
    return [
        # Rows are counted from the top, values from the bottom.
        (column, dots[1] - 1 - _scaled(sum(values) / len(values), y_range, dots[1]))
        for column, values in sorted(by_column.items())
    ]


def _scaled(value: float, value_range: tuple[float, float], num_dots: int) -> int:
    low, high = value_range
    return min(num_dots - 1, max(0, round((value - low) / (high - low) * (num_dots - 1))))


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    (x0, y0), (x1, y1) = start, end
    length = max(abs(x1 - x0), abs(y1 - y0), 1)
    return [(x0 + round((x1 - x0) * i / length), y0 + round((y1 - y0) * i / length)) for i in range(length + 1)]
