"""Which of our files a parsed file is, so that a wrong one is called what it is and not a heap of unknown keys.

A file says so by its `schema`, as in `periplus.fleet/1`; jobs as people write them have none. One without its schema
is known by keys that no other kind has.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from periplus.errors import ConfigError

_SCHEMA = re.compile(r"periplus\.(?P<kind>[a-z-]+)/\d+")
_OWN_KEYS: Mapping[str, frozenset[str]] = {
    "fleet": frozenset({"links", "gpu_types"}),
    "workload": frozenset({"eta", "prompt_tokens", "completion_tokens", "architectures", "prompts_per_step"}),
    "job": frozenset({"environment", "data", "sampling", "train", "optimizer", "staleness", "eval", "plan"}),
}


def need_kind(tree: Mapping[str, Any], source: str, wanted: Sequence[str]) -> None:
    """Raises: ConfigError if the file is seen to be none of `wanted`, such as fleet, or lacks the schema of one.

    What is not seen to be anything passes: its keys say what is wrong with it.
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
    if seen not in ("", "job"):
        raise ConfigError(f"{source}: looks like {_named(seen)}, but has no schema; add schema: periplus.{seen}/1")


def _seen(tree: Mapping[str, Any]) -> str:
    """The kind that has most of its own keys there; empty if none has more than all others."""
    counts = {kind: len(keys & tree.keys()) for kind, keys in _OWN_KEYS.items()}
    regions = tree.get("regions")
    counts["fleet"] += isinstance(regions, list) and all(isinstance(region, dict) for region in regions)
    most = max(counts.values())
    kinds = [kind for kind, count in counts.items() if count == most]
    return kinds[0] if len(kinds) == 1 else ""


def _named(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind.replace('-', ' ')}"
