"""Quantities as text for people: decimal prefixes, three or four digits, and the unit.

A quantity that is not known (None) is shown as UNKNOWN.
"""

import math

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
UNKNOWN = "-"
"""Text of a quantity that is not known."""


def short(value: float | None) -> str:
    """Return a number with three significant digits: 0.0123, 1.23, 12.3, 123, 1.23k."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor * 0.9995:
            return f"{_digits(value / factor)}{prefix}"
    return _digits(value)


def _digits(value: float) -> str:
    if abs(value) >= 999.5 or value == int(value):
        return f"{value:,.0f}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value) * 1.0005)))
    return f"{value:.{min(decimals, 6)}f}"


def tick(value: float) -> str:
    """Return the label of an axis: as `short`, without trailing zeros."""
    text = short(value)
    number, prefix = (text[:-1], text[-1]) if text[-1].isalpha() else (text, "")
    return (number.rstrip("0").rstrip(".") if "." in number else number) + prefix


def quantity(value: float | None, unit: str) -> str:
    """Return a number with its prefix at the unit, such as `12.3 MB` or `1.23 kB`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    text = short(value)
    return f"{text[:-1]} {text[-1]}{unit}" if text[-1].isalpha() else f"{text} {unit}"


def size(num_bytes: float | None) -> str:
    """Return bytes with a decimal prefix, such as `12.3 MB`."""
    return quantity(num_bytes, "B")


def mbit(bits_per_s: float | None) -> str:
    """Return a rate in Mbit/s without the unit, for a column whose heading names it."""
    if bits_per_s is None or not math.isfinite(bits_per_s):
        return UNKNOWN
    mbit_per_s = bits_per_s / 1e6
    decimals = 2 if mbit_per_s < 9.995 else 1 if mbit_per_s < 99.95 else 0
    return f"{mbit_per_s:,.{decimals}f}"


def duration(seconds: float | None) -> str:
    """Return a duration, such as `12.3 s`, `4:05` or `1:02:03`."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    return f"{seconds:.1f} s" if 0 <= seconds < 60 else clock(seconds)


def clock(seconds: float) -> str:
    """Return a time in a form that keeps its shape while it runs, such as `0:07`, `4:05` or `1:02:03`."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def percent(fraction: float | None) -> str:
    """Return a fraction as a percentage, such as `41.8 %`."""
    return UNKNOWN if fraction is None or not math.isfinite(fraction) else f"{fraction * 100:.1f} %"


def factor(larger: float | None, smaller: float | None) -> str:
    """Return how many times smaller the second number is than the first, such as `42x`."""
    if larger is None or not smaller:
        return UNKNOWN
    ratio = larger / smaller
    return f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:,.0f}x"
