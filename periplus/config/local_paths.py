"""Expands `~` and environment variables in the paths of a job file, where the job is submitted, and finds the home."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from periplus.errors import ConfigError

_VARIABLE = re.compile(r"\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[^}]*)\})", re.ASCII)


def home_folder() -> Path:
    """Return the user's home, or a folder that cannot exist for a user without one, as in some containers.

    Whoever writes below it says which variable names another folder.
    """
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def expanded_path(path: str, key: str, variables: Mapping[str, str] = os.environ) -> str:
    """Return a path with `~` or `~USER` at its beginning, `$NAME` and `${NAME}` replaced, as a shell does.

    An absolute path that exists stays, since a recorded job may name folders that have such names. `key` is the job's
    key, for messages. Raises: ConfigError for an unknown user, or for a variable that is not set or is empty.
    """
    if Path(path).is_absolute() and exists(Path(path)):
        return path
    at_home = os.path.expanduser(path)
    if at_home.startswith("~") and not exists(Path(path)):
        raise ConfigError(f"{key} is {path!r}, but this machine knows no such user's home; write the path out")

    def value(match: re.Match[str]) -> str:
        name = match["name"] or match["braced"]
        if not variables.get(name):
            raise ConfigError(
                f"{key} is {path!r}, but the environment variable {name!r} is not set here, or is empty; set it, or "
                "write the path out"
            )
        return variables[name]

    return _VARIABLE.sub(value, at_home)


def exists(path: Path) -> bool:
    """Return whether a file or directory is there; a path that the operating system refuses is not."""
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, a folder above that may not be read, or a NUL byte
        return False
