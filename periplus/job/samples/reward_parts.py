"""Parts of a sample's reward, as they travel in the metadata of its trajectory.

A reward may be the weighted sum of several functions. The worker puts the value of each into the trajectory's metadata,
a JSON object, under the key `reward_parts`: an object from the part's name to its value. Metadata comes from other
machines and may hold anything, so whatever is not such an object is no part.
"""

import json
from math import isfinite

KEY = "reward_parts"
"""Key of the parts in a trajectory's metadata."""


def reward_parts_of(metadata: str) -> dict[str, float]:
    """Return the parts of a reward by name, in the order of the metadata; none if there are none.

    A value that is not a finite number is left out.
    """
    # Most metadata has no parts, and is not parsed.
    if f'"{KEY}"' not in metadata:
        return {}
    try:
        tree = json.loads(metadata)
    except (ValueError, RecursionError):
        return {}
    parts = tree.get(KEY) if isinstance(tree, dict) else None
    if not isinstance(parts, dict):
        return {}
    return {name: float(value) for name, value in parts.items() if _is_number(value)}


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False
