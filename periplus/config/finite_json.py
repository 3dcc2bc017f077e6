"""Writes JSON that every parser accepts: a float that is NaN or infinite becomes null.

Python's `json` writes such floats as `NaN` and `Infinity`, which RFC 8259 does not allow, so that other parsers refuse
the whole line. Code for which a NaN is an error must check for it where the number is made.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any


def finite(value: Any) -> Any:
    """Return the same tree of mappings, sequences and scalars, with None for every float that is not finite."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return value


def dumps(value: Any, **options: Any) -> str:
    """Return `json.dumps` of the value, with null for floats that are not finite.

    Raises: TypeError for a value that JSON cannot hold.
    """
    return json.dumps(finite(value), allow_nan=False, **options)
