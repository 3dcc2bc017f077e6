"""Conversion of rendered terminal lines to an SVG that looks the same everywhere.

Letters become text in the reader's monospaced font. Characters that fonts draw differently, or with gaps between rows
(frames, bars, braille dots, marks), become shapes. The SVG refers to nothing outside of itself.
"""

from collections.abc import Iterator, Sequence

from rich.color import Color, blend_rgb
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme

from periplus.view import svg
from periplus.view.svg import Markup

CELL = 10.0
"""Width of a character cell in SVG units."""
ROW = 21.0
"""Height of a row in SVG units."""
_MARGIN = (22.0, 20.0)
_FONT_SIZE = 16.2
_FONTS = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
_EIGHTHS = {block: (8 - i) / 8 for i, block in enumerate("█▉▊▋▌▍▎▏")}
_LINES = {"━": 3.4, "─": 1.0, "╌": 1.0}
_CORNERS = {"╭": (1, 1), "╮": (-1, 1), "╰": (1, -1), "╯": (-1, -1)}
_MARKS = "●○■▲"


def terminal_svg(lines: Sequence[Sequence[Segment]], theme: TerminalTheme, *, label: str) -> str:
    """Return the lines as one SVG document. `label` is its title for screen readers."""
    # The picture is as wide as its longest line, in cells of a fixed size.
    columns = max((sum(segment.cell_length for segment in line) for line in lines), default=0)
    width, height = columns * CELL + 2 * _MARGIN[0], len(lines) * ROW + 2 * _MARGIN[1]
    group = svg.element(
        "g",
        svg.lines(shape for row, line in enumerate(lines) for shape in _row(line, row, theme)),
        font_family=_FONTS,
        font_size=_FONT_SIZE,
        transform=f"translate({svg.number(_MARGIN[0])} {svg.number(_MARGIN[1])})",
    )
    background = "#{:02x}{:02x}{:02x}".format(*theme.background_color)
    ground = svg.element("rect", width=width, height=height, rx=12, fill=background)
    return svg.document(label, "", width, height, [ground, group])


def _row(line: Sequence[Segment], row: int, theme: TerminalTheme) -> Iterator[Markup]:
    column = 0
    for segment in line:
        colour = _colour(segment.style or Style(), theme)
        bold = bool(segment.style and segment.style.bold)
        # Characters of one kind are drawn together: fewer shapes, and no gaps between them.
        for kind, text in _runs(segment.text):
            x, y = column * CELL, row * ROW
            column += len(text)
            match kind:
                case "text":
                    yield _words(text, x, y, colour, bold=bold)
                case "bar":
                    # A bar's last character may be any eighth of a cell.
                    bar_width = sum(_EIGHTHS[character] for character in text) * CELL
                    yield svg.element("rect", x=x, y=y + 3, width=bar_width, height=ROW - 6, rx=1.5, fill=colour)
                case "braille":
                    yield _path("".join(_braille(text, x, y)), colour, 3.2, cap="round")
                case "line":
                    dashes = "3 3" if text[0] == "╌" else None
                    steps = svg.path("M", x, y + ROW / 2, "h", len(text) * CELL)
                    yield _path(steps, colour, _LINES[text[0]], dashes=dashes)
                case "frame":
                    yield _path(
                        "".join(_frame(character, x + i * CELL, y) for i, character in enumerate(text)), colour, 1.0
                    )
                case "mark":
                    yield from (_mark(character, x + i * CELL, y, colour) for i, character in enumerate(text))


def _runs(text: str) -> Iterator[tuple[str, str]]:
    """Split a text into runs (kind, text) of one kind of character. A run of line characters repeats one character."""
    start = 0
    for end in range(1, len(text) + 1):
        kind = _kind(text[start])
        same = end < len(text) and _kind(text[end]) == kind and (kind != "line" or text[end] == text[start])
        if not same:
            yield kind, text[start:end]
            start = end


def _kind(character: str) -> str:
    if character == " ":
        return "space"
    if character in _EIGHTHS:
        return "bar"
    if "\u2800" <= character <= "\u28ff":
        return "braille"
    if character in _LINES:
        return "line"
    if character in _MARKS:
        return "mark"
    return "frame" if character in _CORNERS or character in "│┤" else "text"


def _colour(style: Style, theme: TerminalTheme) -> str:
    colour = (style.color or Color.default()).get_truecolor(theme)
    if style.dim:
        colour = blend_rgb(colour, theme.background_color, 0.42)
    return colour.hex


def _words(text: str, x: float, y: float, colour: str, *, bold: bool) -> Markup:
    return svg.element(
        "text",
        svg.text(text),
        x=x,
        y=y + 15.4,
        fill=colour,
        font_weight=700 if bold else None,
        textLength=len(text) * CELL if len(text) > 1 else None,
    )


def _path(steps: str, colour: str, width: float, *, cap: str | None = None, dashes: str | None = None) -> Markup:
    return svg.element(
        "path", d=steps, stroke=colour, stroke_width=width, fill="none", stroke_linecap=cap, stroke_dasharray=dashes
    )


def _frame(character: str, x: float, y: float) -> str:
    middle_x, middle_y, radius = x + CELL / 2, y + ROW / 2, 5.0
    if character in _CORNERS:
        right, down = _CORNERS[character]
        turn = ("Q", middle_x, middle_y, middle_x, middle_y + down * radius)
        return svg.path("M", middle_x + right * radius, middle_y, *turn, "V", y + (ROW if down > 0 else 0))
    tick = ("M", x, middle_y, "H", middle_x) if character == "┤" else ()
    return svg.path("M", middle_x, y, "v", ROW, *tick)


def _braille(text: str, x: float, y: float) -> Iterator[str]:
    # (column, row) of each dot, in the order of Unicode's bits: left rows 0-2, right rows 0-2, then row 3.
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
    for i, character in enumerate(text):
        for bit, (column, row) in enumerate(places):
            if ord(character) >> bit & 1:
                centre = x + i * CELL + (column + 0.5) * CELL / 2, y + (row + 0.5) * ROW / 4
                yield svg.path("M", *centre, "h", 0)


def _mark(character: str, x: float, y: float, colour: str) -> Markup:
    centre_x, centre_y = x + CELL / 2, y + ROW / 2
    match character:
        case "■":
            return svg.element("rect", x=x + 1, y=centre_y - 4, width=8, height=8, rx=1, fill=colour)
        case "▲":
            return svg.element("path", d=svg.path("M", centre_x, centre_y - 5, "l", 5, 9.5, "h", -10, "z"), fill=colour)
        case "●":
            return svg.element("circle", cx=centre_x, cy=centre_y, r=4, fill=colour)
    return svg.element("circle", cx=centre_x, cy=centre_y, r=4, fill="none", stroke=colour, stroke_width=1.5)
