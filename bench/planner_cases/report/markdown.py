"""Numbers and tables as the record shows them."""

import math
import textwrap
from collections.abc import Iterable, Sequence

NONE = "-"
"""In place of a number that is not there."""


def number(value: float | None, digits: int = 3) -> str:
    """So many significant digits, never an exponent; from a thousand on, whole with separators."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def fixed(value: float | None, decimals: int) -> str:
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:z,.{decimals}f}"


def percent(fraction: float | None, decimals: int = 1) -> str:
    """A bare number, for columns that name the unit."""
    return fixed(None if fraction is None else 100 * fraction, decimals)


def against(value: float, op: str, target: float) -> str:
    """A figure with as many digits as show on which side of its target it is."""
    for digits in range(3, 17):
        text = _trimmed(number(value, digits))
        shown = float(text.replace(",", ""))
        if (shown == target) == (value == target) and _holds(shown, op, target) == _holds(value, op, target):
            return text
    return repr(value)


def _holds(value: float, op: str, target: float) -> bool:
    return {"==": value == target, "<=": value <= target, ">=": value >= target}[op]


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Raises: ValueError for a row of another length."""
    lines = [_line(header), "|" + "---|" * len(header)]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"{len(row)} cells under {len(header)} headings: {row}")
        lines.append(_line(row))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def counted(num: int, noun: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{num:,} {noun}{'' if num == 1 else 's'}"


def paragraph(words: str) -> str:
    """In lines of a page's width; headings, pictures and tables stay as they are."""
    if words.startswith(("#", "!", "|", "- ")):
        return words
    return _wrapped(words)


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(_wrapped(f"- {line}", "  ") for line in lines)


def _wrapped(words: str, indent: str = "") -> str:
    return textwrap.fill(words, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
