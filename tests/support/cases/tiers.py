"""Divides the cases of a test between the quick tier and the slow one."""

from collections.abc import Iterable
from typing import Any

import pytest


def rest_is_slow(cases: Iterable[Any], *, quick: int = 1) -> list[Any]:
    """Return the cases for `parametrize`: all but the first `quick` of them run in `make test-slow` only."""
    return [
        case if number < quick else pytest.param(*_values(case), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
