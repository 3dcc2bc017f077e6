"""Reads `environment.config` of the runtime's own environments of several turns: whole numbers with bounds."""

from collections.abc import Mapping
from typing import Any

from periplus.errors import ConfigError


def read_settings(name: str, config: Mapping[str, Any], known: Mapping[str, tuple[int, range]]) -> dict[str, int]:
    """Return the value of each known setting, given as (default, allowed values), of the environment `name`.

    Raises: ConfigError for a setting that is not known, or for a value that is not allowed.
    """
    for key, value in config.items():
        if key not in known:
            raise ConfigError(f"environment.config.{key} is no setting of {name}; it has {', '.join(known)}")
        allowed = known[key][1]
        if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
            raise ConfigError(
                f"environment.config.{key} is {value!r}; give a whole number from {allowed[0]} to {allowed[-1]}"
            )
    return {key: config.get(key, default) for key, (default, _) in known.items()}
