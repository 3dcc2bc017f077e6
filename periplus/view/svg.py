"""SVG markup: elements, numbers, paths, and the document around them. Pictures of every package are written with it.

`Markup` is text that an SVG parser reads as it is. Only this module makes it, and it escapes every text and attribute.
So a name from a user's file cannot become markup, and a type checker refuses a plain string where markup is expected.
Characters that XML does not allow, such as control characters in a name, become U+FFFD.

A number is written with at most two decimals: a hundredth of a pixel is not seen, and digits are most of a file.
The module knows no chart, no axis and no colour of its own; a picture brings its palette to `colour_rules`.
"""

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import NewType

Markup = NewType("Markup", str)
"""SVG markup in which all texts and attributes are escaped."""

_DECIMALS = 2
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document may hold, not even escaped (XML 1.0, section 2.2)."""
_AROUND_COMMAND = re.compile(" ?([A-Za-z]) ?")


def text(words: str) -> Markup:
    """Return the escaped text."""
    return Markup(escape(_NOT_IN_XML.sub("\ufffd", words), quote=False))


def element(tag: str, *inside: Markup, **attributes: str | float | None) -> Markup:
    """Return an element with its attributes in the given order; those that are None are left out.

    In the names of attributes, `_` stands for `-`, and one at the end is dropped: `class_`, `stroke_width`.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{written}>{''.join(inside)}</{tag}>" if inside else f"<{tag}{written}/>")


def lines(parts: Iterable[Markup]) -> Markup:
    """Return the parts as one piece of markup, each on a line of its own."""
    return Markup("".join(f"\n{part}" for part in parts) + "\n")


def number(value: float) -> str:
    """Return a number as it stands in a file, with at most two decimals. Raises: ValueError if it is not finite."""
    written = f"{value:.{_DECIMALS}f}"
    if not written.lstrip("-")[0].isdigit():
        raise ValueError(f"a length of {value} cannot be drawn")
    written = written.rstrip("0").rstrip(".") if "." in written else written
    return "0" if written == "-0" else written


def path(*steps: str | float) -> str:
    """Return the data of a path: letters of commands and their numbers, such as `path("M", 1, 2, "h", 5)`."""
    spaced = " ".join(step if isinstance(step, str) else number(step) for step in steps)
    return _AROUND_COMMAND.sub(r"\1", spaced)


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """Return the data of a path that joins points by straight lines."""
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def document(
    title: str,
    description: str,
    width: float,
    height: float,
    shapes: Iterable[Markup],
    /,
    **attributes: str | float | None,
) -> str:
    """Return a whole SVG file. Screen readers read its title and, unless it is empty, its description.

    `width` and `height` are those of the drawing's own units. A viewer fills its window with the picture, unless
    attributes of these names say how large it is.
    """
    # Title and description stand before the shapes, where screen readers look for them.
    described = [element("desc", text(description))] if description else []
    parts = [element("title", text(title)), *described, *shapes]
    root = element(
        "svg",
        lines(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        **attributes,
    )
    return f"{root}\n"


def inline(label: str, width: float, height: float, shapes: Iterable[Markup]) -> Markup:
    """Return an SVG element for an HTML page. Screen readers read its label, which no browser shows as a tooltip."""
    view = f"0 0 {number(width)} {number(height)}"
    return element("svg", *shapes, viewBox=view, role="img", aria_label=label)


def colour_rules(light: Mapping[str, str], dark: Mapping[str, str]) -> Markup:
    """Return a style element with two classes for each named colour, in a light scheme and in the reader's dark one.

    `NAME` fills a shape with the colour; `stroke NAME` draws its outline with it and leaves it empty.
    """
    rules = f"{_rules(light)}@media(prefers-color-scheme:dark){{{_rules(dark)}}}.stroke{{fill:none}}"
    return element("style", text(rules))


def _rules(palette: Mapping[str, str]) -> str:
    return "".join(
        f".{name}{{fill:{value}}}.stroke.{name}{{fill:none;stroke:{value}}}" for name, value in palette.items()
    )


def _value(value: str | float) -> str:
    return escape(_NOT_IN_XML.sub("\ufffd", value)) if isinstance(value, str) else number(value)
