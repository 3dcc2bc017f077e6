"""Checks of the values that a line of `audit.jsonl` holds: each returns the value, or raises ValueError with what it
is.

JSON has types that a field may not have: a float for an integer, a number for a text, an integer beyond 64 bits. Every
value is checked before it is used, so that whatever stands in a file ends in a finding.
"""

import re
from collections.abc import Callable
from typing import Any

MAX_TEXT_CHARS = 4096
"""Most characters in the name of a job, worker, region or algorithm. A worker is accepted with at most 256 bytes."""

_MAX_INT = (1 << 64) - 1
_LABEL = re.compile(r"[a-z][a-z0-9_]{0,31}")


def checked_integer(value: Any) -> int:
    """Return an integer of 0 to 2^64 - 1. Raises: ValueError."""
    if type(value) is not int or not 0 <= value <= _MAX_INT:
        raise ValueError(f"an integer of 0 to 2^64 - 1 expected, not {value!r:.60}")
    return value


def checked_number(value: Any) -> float:
    """Return seconds since 1970, far beyond any date at most. Raises: ValueError."""
    if type(value) is not float or not -1e12 < value < 1e12:
        raise ValueError(f"seconds expected, not {value!r:.60}")
    return value


def integer_up_to(limit: int) -> Callable[[Any], int]:
    """Return a check for an integer of 1 to `limit`."""

    def of_json(value: Any) -> int:
        if not 1 <= checked_integer(value) <= limit:
            raise ValueError(f"an integer of 1 to {limit} expected, not {value}")
        return int(value)

    return of_json


def checked_text(value: Any) -> str:
    """Return a text of at most MAX_TEXT_CHARS characters. Raises: ValueError."""
    if type(value) is not str or len(value) > MAX_TEXT_CHARS:
        raise ValueError(f"text of at most {MAX_TEXT_CHARS} characters expected, not {value!r:.60}")
    return value


def checked_label(value: Any) -> str:
    """Return a lower-case word, or an empty text. Raises: ValueError."""
    if type(value) is not str or not (value == "" or _LABEL.fullmatch(value)):
        raise ValueError(f"a lower-case word expected, not {value!r:.60}")
    return value


def checked_boolean(value: Any) -> bool:
    """Return true or false, and no number in their place. Raises: ValueError."""
    if type(value) is not bool:
        raise ValueError(f"true or false expected, not {value!r:.60}")
    return value
