"""Logarithmic axes and points, on top of the planner's shapes. Numbers are pixels."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from planner.explain.pictures import svg

WIDTH = 980.0
MARGIN = 28.0
NOTE = 12.0
"""Size of notes and of an axis' numbers."""


@dataclass(frozen=True, slots=True)
class Log:
    """From the value `low` at `start` to the value `high` at `end`; what lies outside is put at its end."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        return self.start + math.log(value / self.low) / math.log(self.high / self.low) * (self.end - self.start)

    def ticks(self, mantissas: Sequence[float] = (1, 2, 5)) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [m * 10.0**power for power in powers for m in mantissas]
        return [value for value in found if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]


def grid_x(axis: Log, ticks: Iterable[float], top: float, bottom: float, *, unit: str = "") -> list[str]:
    """Vertical lines with their values below."""
    shapes = []
    for value in ticks:
        x = axis.at(value)
        shapes.append(svg.line([(x, top), (x, bottom)], "line"))
        shapes.append(svg.text(x, bottom + 17, f"{value:,g}{unit}", size=NOTE, colour="soft", anchor="middle"))
    return shapes


def grid_y(axis: Log, ticks: Iterable[float], left: float, right: float) -> list[str]:
    """Horizontal lines with their values to the left."""
    shapes = []
    for value in ticks:
        y = axis.at(value)
        shapes.append(svg.line([(left, y), (right, y)], "line"))
        shapes.append(svg.text(left - 7, y + 4, f"{value:,g}", size=NOTE, colour="soft", anchor="end"))
    return shapes


def dots(points: Iterable[tuple[float, float]], colour: str, size: float, *, opacity: float = 1.0) -> str:
    """Filled circles in one shape; those on the same half pixel are drawn once."""
    places = sorted({(round(2 * x) / 2, round(2 * y) / 2) for x, y in points})
    path = "".join(f"M{x:g} {y:g}h0" for x, y in places)
    more = f' stroke-opacity="{opacity:g}"' if opacity < 1 else ""
    return f'<path class="{colour} stroke" stroke-width="{size:g}" stroke-linecap="round" d="{path}"{more}/>'


def ring(x: float, y: float, colour: str, size: float, *, filled: bool = False, tip: str = "") -> str:
    """One circle, empty or filled; `tip` is shown where the reader points."""
    kind = colour if filled else f"{colour} stroke"
    width = "" if filled else ' stroke-width="1.8"'
    shape = f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{size / 2:g}"{width}'
    return f"{shape}/>" if not tip else f"{shape}><title>{escape(tip)}</title></circle>"


def head(title: str, lines: Sequence[str]) -> tuple[list[str], float]:
    """The title and lines below it, wrapped; and the baseline of the last."""
    shapes, y = [svg.text(MARGIN, 40, title, size=19, bold=True)], 40.0
    for words in (part for line in lines if line for part in svg.wrapped(line, WIDTH - 2 * MARGIN, 13)):
        y += 20
        shapes.append(svg.text(MARGIN, y, words, size=13, colour="soft"))
    return shapes, y


def notes(lines: Sequence[str], y: float) -> tuple[list[str], float]:
    """Lines below a picture, wrapped; and where they end."""
    shapes = []
    for words in (part for line in lines for part in svg.wrapped(line, WIDTH - 2 * MARGIN, NOTE)):
        shapes.append(svg.text(MARGIN, y, words, size=NOTE, colour="soft"))
        y += 17
    return shapes, y
