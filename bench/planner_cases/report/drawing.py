"""Shapes in the colours of the planner's record: text, boxes, lines, legends and grids, and the document around them.

A colour is a name of the two palettes below, of which the reader's light or dark scheme decides. Lengths are pixels.
`periplus.view.svg` writes the markup.
"""

from collections.abc import Callable, Iterable

from periplus.view import svg
from periplus.view.axes import Axis
from periplus.view.svg import Markup

_FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_LIGHT = {
    "bg": "#ffffff",
    "card": "#f5f7f9",
    "ink": "#14212e",
    "soft": "#566573",
    "line": "#d5dce3",
    "idle": "#e3e8ed",
    "generation": "#0f7f92",
    "reward": "#b3541e",
    "reference": "#8365bd",
    "critic_inference": "#b58a12",
    "actor_training": "#2456a6",
    "critic_training": "#4b8a36",
    "weights": "#8b2f6b",
    "bad": "#c0353a",
    "idling": "#a9d3da",
    "waits": "#efc3c5",
    "pink": "#e275b5",
}
"""Colours of the light scheme by name; `_DARK` has those of the dark scheme."""
_DARK = {
    "bg": "#0c141f",
    "card": "#121d2b",
    "ink": "#dbe4ec",
    "soft": "#93a3b3",
    "line": "#26364a",
    "idle": "#223144",
    "generation": "#3fa6b8",
    "reward": "#d98b57",
    "reference": "#a68bdc",
    "critic_inference": "#d3ad45",
    "actor_training": "#6c9ede",
    "critic_training": "#7ab864",
    "weights": "#c774a8",
    "bad": "#f07178",
    "idling": "#235661",
    "waits": "#5a2b30",
    "pink": "#f5a3d3",
}
_LETTER = 0.56
"""Mean width of a letter relative to the font size. It is slightly above the measured one, which keeps texts apart."""


def document(title: str, description: str, width: float, height: float, shapes: Iterable[Markup]) -> str:
    """Return a whole SVG file."""
    width, height = round(width), round(height)
    ground = svg.element("rect", class_="bg", width=width, height=height)
    parts = [svg.colour_rules(_LIGHT, _DARK), ground, *shapes]
    return svg.document(title, description, width, height, parts, width=width, height=height, font_family=_FONTS)


def text(
    x: float, y: float, words: str, *, size: float = 13, colour: str = "ink", anchor: str = "start", bold: bool = False
) -> Markup:
    """Return one line of text with its baseline at `y`."""
    return svg.element(
        "text",
        svg.text(words),
        x=x,
        y=y,
        font_size=size,
        class_=colour,
        text_anchor=anchor if anchor != "start" else None,
        font_weight=650 if bold else None,
    )


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    colour: str,
    *,
    radius: float = 2,
    opacity: float | None = None,
    tip: str = "",
) -> Markup:
    """Return a filled rectangle; `tip` is its tooltip."""
    wide = max(width, 0.0)
    return svg.element(
        "rect", *_tip(tip), class_=colour, x=x, y=y, width=wide, height=height, rx=radius, fill_opacity=opacity
    )


def line(
    points: Iterable[tuple[float, float]], colour: str, *, width: float = 1.0, dashed: bool = False, dashes: str = ""
) -> Markup:
    """Return joined points as a line. `dashes` gives the lengths of strokes and gaps if they differ."""
    broken = dashes or ("4 4" if dashed else None)
    steps = svg.polyline(points)
    return svg.element("path", class_=f"{colour} stroke", stroke_width=width, d=steps, stroke_dasharray=broken)


def ring(x: float, y: float, colour: str, size: float, *, filled: bool = False, tip: str = "") -> Markup:
    """Return a circle of diameter `size`, empty or filled; `tip` is its tooltip."""
    kind, width = (colour, None) if filled else (f"{colour} stroke", 1.8)
    return svg.element("circle", *_tip(tip), class_=kind, cx=x, cy=y, r=size / 2, stroke_width=width)


def dots(points: Iterable[tuple[float, float]], colour: str, size: float, *, opacity: float | None = None) -> Markup:
    """Return filled circles of diameter `size` as one shape; those on the same half pixel are drawn once."""
    # Charts have thousands of points; those that would cover each other only make the file longer.
    places = sorted({(round(2 * x) / 2, round(2 * y) / 2) for x, y in points})
    # A line of length 0 with round ends is a dot.
    steps = "".join(svg.path("M", x, y, "h", 0) for x, y in places)
    return svg.element(
        "path",
        class_=f"{colour} stroke",
        stroke_width=size,
        stroke_linecap="round",
        stroke_opacity=opacity,
        d=steps,
    )


def grid_x(
    axis: Axis, ticks: Iterable[float], top: float, bottom: float, *, label: Callable[[float], str] = "{:,g}".format
) -> list[Markup]:
    """Return vertical lines at these values, with their numbers below."""
    shapes = []
    for value in ticks:
        x = axis.at(value)
        shapes.append(line([(x, top), (x, bottom)], "line"))
        shapes.append(text(x, bottom + 17, label(value), size=12, colour="soft", anchor="middle"))
    return shapes


def grid_y(
    axis: Axis, ticks: Iterable[float], left: float, right: float, *, label: Callable[[float], str] = "{:,g}".format
) -> list[Markup]:
    """Return horizontal lines at these values, with their numbers to the left."""
    shapes = []
    for value in ticks:
        y = axis.at(value)
        shapes.append(line([(left, y), (right, y)], "line"))
        shapes.append(text(left - 7, y + 4, label(value), size=12, colour="soft", anchor="end"))
    return shapes


def text_width(words: str, size: float = 13) -> float:
    """Return the approximate width of a line of text."""
    return len(words) * size * _LETTER


def wrapped(words: str, width: float, size: float = 13) -> list[str]:
    """Return the text in lines of at most that width."""
    lines, current = [], ""
    for word in words.split():
        longer = f"{current} {word}" if current else word
        # A single word that is too wide gets a line of its own.
        if current and text_width(longer, size) > width:
            lines.append(current)
            longer = word
        current = longer
    return [*lines, current] if current else lines


def legend(x: float, y: float, entries: Iterable[tuple[str, str]], width: float) -> tuple[list[Markup], float]:
    """Return (shapes, baseline of the last row) of a legend of (colour, words) in as many rows as needed."""
    shapes: list[Markup] = []
    at = x
    for colour, words in entries:
        wide = 26 + text_width(words, 12)
        # The first entry of a row is drawn even if it is too wide.
        if at > x and at + wide > x + width:
            at, y = x, y + 20
        shapes += [box(at, y - 10, 12, 12, colour), text(at + 17, y, words, size=12, colour="soft")]
        at += wide + 12
    return shapes, y


def _tip(words: str) -> list[Markup]:
    return [svg.element("title", svg.text(words))] if words else []
