"""Conversion of rendered terminal lines to an SVG that looks the same everywhere.

Letters become text in the reader's monospaced font. Characters that fonts draw differently, or with gaps between rows
(frames, bars, braille dots, marks), become shapes. The SVG refers to nothing outside of itself.
"""

from collections.abc import Iterator, Sequence
from html import escape

from rich.color import Color, blend_rgb
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme

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
    columns = max((sum(segment.cell_length for segment in line) for line in lines), default=0)
    width, height = columns * CELL + 2 * _MARGIN[0], len(lines) * ROW + 2 * _MARGIN[1]
    shapes = [shape for row, line in enumerate(lines) for shape in _row(line, row, theme)]
    background = "#{:02x}{:02x}{:02x}".format(*theme.background_color)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
            f"<title>{escape(label)}</title>",
            f'<rect width="{width:g}" height="{height:g}" rx="12" fill="{background}"/>',
            f'<g font-family="{_FONTS}" font-size="{_FONT_SIZE}" transform="translate({_MARGIN[0]:g} {_MARGIN[1]:g})">',
            *shapes,
            "</g>",
            "</svg>",
            "",
        ]
    )


def _row(line: Sequence[Segment], row: int, theme: TerminalTheme) -> Iterator[str]:
    column = 0
    for segment in line:
        colour = _colour(segment.style or Style(), theme)
        bold = bool(segment.style and segment.style.bold)
        for kind, text in _runs(segment.text):
            x, y = column * CELL, row * ROW
            column += len(text)
            match kind:
                case "text":
                    weight = ' font-weight="700"' if bold else ""
                    length = f' textLength="{len(text) * CELL:g}"' if len(text) > 1 else ""
                    yield f'<text x="{x:g}" y="{y + 15.4:g}" fill="{colour}"{weight}{length}>{escape(text)}</text>'
                case "bar":
                    wide = sum(_EIGHTHS[c] for c in text) * CELL
                    place = f'x="{x:g}" y="{y + 3:g}" width="{wide:g}" height="{ROW - 6:g}"'
                    yield f'<rect {place} rx="1.5" fill="{colour}"/>'
                case "braille":
                    yield _path("".join(_braille(text, x, y)), colour, 3.2, ' stroke-linecap="round"')
                case "line":
                    dashes = ' stroke-dasharray="3 3"' if text[0] == "╌" else ""
                    yield _path(f"M{x:g} {y + ROW / 2:g}h{len(text) * CELL:g}", colour, _LINES[text[0]], dashes)
                case "frame":
                    yield _path("".join(_frame(c, x + i * CELL, y) for i, c in enumerate(text)), colour, 1.0)
                case "mark":
                    yield from (_mark(c, x + i * CELL, y, colour) for i, c in enumerate(text))


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


def _path(steps: str, colour: str, width: float, more: str = "") -> str:
    return f'<path d="{steps}" stroke="{colour}" stroke-width="{width:g}" fill="none"{more}/>'


def _frame(character: str, x: float, y: float) -> str:
    middle_x, middle_y, radius = x + CELL / 2, y + ROW / 2, 5.0
    if character in _CORNERS:
        right, down = _CORNERS[character]
        turn = f"Q{middle_x:g} {middle_y:g} {middle_x:g} {middle_y + down * radius:g}"
        return f"M{middle_x + right * radius:g} {middle_y:g}{turn}V{y + (ROW if down > 0 else 0):g}"
    tick = f"M{x:g} {middle_y:g}H{middle_x:g}" if character == "┤" else ""
    return f"M{middle_x:g} {y:g}v{ROW:g}{tick}"


def _braille(text: str, x: float, y: float) -> Iterator[str]:
    # (column, row) of each dot, in the order of Unicode's bits: left rows 0-2, right rows 0-2, then row 3.
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
    for i, character in enumerate(text):
        for bit, (column, row) in enumerate(places):
            if ord(character) >> bit & 1:
                yield f"M{x + i * CELL + (column + 0.5) * CELL / 2:g} {y + (row + 0.5) * ROW / 4:g}h0"


def _mark(character: str, x: float, y: float, colour: str) -> str:
    centre_x, centre_y = x + CELL / 2, y + ROW / 2
    match character:
        case "■":
            return f'<rect x="{x + 1:g}" y="{centre_y - 4:g}" width="8" height="8" rx="1" fill="{colour}"/>'
        case "▲":
            return f'<path d="M{centre_x:g} {centre_y - 5:g}l5 9.5h-10z" fill="{colour}"/>'
    paint = f'fill="{colour}"' if character == "●" else f'fill="none" stroke="{colour}" stroke-width="1.5"'
    return f'<circle cx="{centre_x:g}" cy="{centre_y:g}" r="4" {paint}/>'
