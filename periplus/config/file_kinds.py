"""Recognises the kind of a parsed file: job, fleet or workload.

A user who gives the wrong kind of file then gets one error that says so, rather than a list of unknown keys. A file
names its kind in `schema`, as in `periplus.fleet/1`; job files that people write have no schema. A file without a
schema is recognised by keys that only one kind has.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from periplus.errors import ConfigError

_SCHEMA = re.compile(r"periplus\.(?P<kind>[a-z-]+)/\d+")
# Keys that only one kind of file has.
_OWN_KEYS: Mapping[str, frozenset[str]] = {
    "fleet": frozenset({"links", "gpu_types"}),
    "workload": frozenset({"eta", "prompt_tokens", "completion_tokens", "architectures", "prompts_per_step"}),
    "job": frozenset({"environment", "data", "sampling", "train", "optimizer", "staleness", "eval", "plan"}),
}


def need_kind(tree: Mapping[str, Any], source: str, wanted: Sequence[str]) -> None:
    """Check that a parsed file is of one of the kinds `wanted`, such as "fleet".

    A file whose kind cannot be recognised passes; the validation of its keys then says what is wrong.
    Raises: ConfigError if the file is recognised as another kind, or if it is no job and lacks its schema.
    """
    asked = " or ".join(map(_named, wanted))
    match = _SCHEMA.fullmatch(str(tree.get("schema", "")))
    if match and match["kind"] not in wanted:
        raise ConfigError(f"{source}: is {_named(match['kind'])}, as its schema says; give {asked}")
    if "schema" in tree:
        return
    seen = _seen(tree)
    if seen and seen not in wanted:
        raise ConfigError(f"{source}: looks like {_named(seen)}; give {asked}")
    # Only job files may lack a schema, since people write them by hand.
    if seen not in ("", "job"):
        raise ConfigError(f"{source}: looks like {_named(seen)}, but has no schema; add schema: periplus.{seen}/1")


def _seen(tree: Mapping[str, Any]) -> str:
    """Return the kind with the most of its own keys in the file; empty if two kinds have equally many."""
    counts = {kind: len(keys & tree.keys()) for kind, keys in _OWN_KEYS.items()}
    regions = tree.get("regions")
    counts["fleet"] += isinstance(regions, list) and all(isinstance(region, dict) for region in regions)
    most = max(counts.values())
    kinds = [kind for kind, count in counts.items() if count == most]
    return kinds[0] if len(kinds) == 1 else ""


def _named(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind.replace('-', ' ')}"
