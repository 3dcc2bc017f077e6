"""Parts of a sample's reward, as they travel in the metadata of its trajectory.

A reward may be the weighted sum of several functions. The worker puts the value of each, before its weight, into the
trajectory's metadata, a JSON object, under the key `reward_parts`: an object from the part's name to its value. A
function that failed also has an entry in the object `reward_failures`, from its name to the kind of failure; its value
is then what the job says for it. Metadata comes from other machines and may hold anything, so whatever is not such an
object is no part.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from periplus.values.reward_failure import RewardFailureKind

KEY = "reward_parts"
"""Key of the parts in a trajectory's metadata."""

FAILURES_KEY = "reward_failures"
"""Key of the functions that failed in a trajectory's metadata."""


def reward_metadata(parts: Mapping[str, float], failures: Mapping[str, str]) -> str:
    """Return the metadata of a trajectory with these parts and failures by name; empty if there are none."""
    said = {key: dict(values) for key, values in ((KEY, parts), (FAILURES_KEY, failures)) if values}
    return json.dumps(said) if said else ""


def reward_parts_of(metadata: str) -> dict[str, float]:
    """Return the parts of a reward by name, in the order of the metadata; none if there are none.

    A value that is not a finite number is left out.
    """
    return {name: float(value) for name, value in _objects(metadata, KEY).items() if _is_number(value)}


def reward_failures_of(metadata: str) -> dict[str, RewardFailureKind]:
    """Return the kinds of failure of reward functions by name; none if there are none.

    A kind that this version does not know is left out.
    """
    kinds = {kind.value: kind for kind in RewardFailureKind}
    failures = _objects(metadata, FAILURES_KEY).items()
    return {name: kinds[kind] for name, kind in failures if isinstance(kind, str) and kind in kinds}


def _objects(metadata: str, key: str) -> dict[str, Any]:
    # Most metadata has no parts, and is not parsed.
    if f'"{key}"' not in metadata:
        return {}
    try:
        tree = json.loads(metadata)
    except (ValueError, RecursionError):
        return {}
    found = tree.get(key) if isinstance(tree, dict) else None
    return found if isinstance(found, dict) else {}


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False
