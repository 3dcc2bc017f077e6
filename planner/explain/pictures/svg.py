"""SVG shapes and the document around them. Lengths are pixels; colours are names of the two palettes."""

from collections.abc import Iterable
from html import escape

from planner.problem.workload import TRAINING, Task

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


def document(title: str, description: str, width: float, height: float, shapes: Iterable[str]) -> str:
    """Return a whole SVG file."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" role="img" font-family="{_FONTS}">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f"<style>{_style()}</style>",
            f'<rect class="bg" width="{width:.0f}" height="{height:.0f}"/>',
            *shapes,
            "</svg>",
            "",
        ]
    )


def text(
    x: float, y: float, words: str, *, size: float = 13, colour: str = "ink", anchor: str = "start", bold: bool = False
) -> str:
    """Return one line of text with its baseline at `y`."""
    weight = ' font-weight="650"' if bold else ""
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" class="{colour}"{where}{weight}>{escape(words)}</text>'


def box(
    x: float, y: float, width: float, height: float, colour: str, *, radius: float = 2, tip: str = "", more: str = ""
) -> str:
    """Return a filled rectangle; `tip` is its tooltip."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.0):.1f}" height="{height:.1f}" rx="{radius:g}"'
    if not tip:
        return f'<rect class="{colour}" {place}{more}/>'
    return f'<rect class="{colour}" {place}{more}><title>{escape(tip)}</title></rect>'


def line(
    points: Iterable[tuple[float, float]], colour: str, *, width: float = 1.0, dashed: bool = False, dashes: str = ""
) -> str:
    """Return joined points as a line. `dashes` gives the lengths of strokes and gaps if they differ."""
    dashes = dashes or ("4 4" if dashed else "")
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    broken = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path class="{colour} stroke" stroke-width="{width:g}" d="{path}"{broken}/>'


def text_width(words: str, size: float = 13) -> float:
    """Return the approximate width of a line of text."""
    return len(words) * size * _LETTER


def fitted(words: str, width: float, size: float = 13) -> str:
    """Return the text, cut with an ellipsis if it is too wide; empty if not even a few letters fit."""
    most = int(width / (size * _LETTER))
    if len(words) <= most:
        return words
    return words[: most - 1].rstrip() + "…" if most >= 4 else ""


def wrapped(words: str, width: float, size: float = 13) -> list[str]:
    """Return the text in lines of at most that width."""
    lines, current = [], ""
    for word in words.split():
        longer = f"{current} {word}" if current else word
        if current and text_width(longer, size) > width:
            lines.append(current)
            longer = word
        current = longer
    return [*lines, current] if current else lines


def legend(x: float, y: float, entries: Iterable[tuple[str, str]], width: float) -> tuple[list[str], float]:
    """Return (shapes, baseline of the last row) of a legend of (colour, words) in as many rows as needed."""
    shapes, at = [], x
    for colour, words in entries:
        wide = 26 + text_width(words, 12)
        if at > x and at + wide > x + width:
            at, y = x, y + 20
        shapes += [box(at, y - 10, 12, 12, colour), text(at + 17, y, words, size=12, colour="soft")]
        at += wide + 12
    return shapes, y


def colour_of(tasks: Iterable[Task]) -> str:
    """Return the colour of a group: that of its first task that trains, otherwise of its first task."""
    tasks = tuple(tasks)
    return next((task for task in tasks if task in TRAINING), tasks[0]).value


def task_name(task: str) -> str:
    """Return the task's name with spaces."""
    return task.replace("_", " ")


def _style() -> str:
    return f"{_rules(_LIGHT)}@media(prefers-color-scheme:dark){{{_rules(_DARK)}}}.stroke{{fill:none}}"


def _rules(palette: dict[str, str]) -> str:
    return "".join(
        f".{name}{{fill:{value}}}.stroke.{name}{{fill:none;stroke:{value}}}" for name, value in palette.items()
    )
