"""JSON that every reader of JSON can read: a float that is NaN or infinite is written as null.

Python writes `NaN` and `Infinity`, which RFC 8259 does not know, and which other parsers refuse together with the whole
line. What must not be lost instead of such a number is checked where it is made; here the line is kept readable.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any


def finite(value: Any) -> Any:
    """The same mappings, sequences and scalars with None for every float that is not finite."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return value


def dumps(value: Any, **options: Any) -> str:
    """`json.dumps` of the finite value. Raises: TypeError for what is no JSON."""
    return json.dumps(finite(value), allow_nan=False, **options)
