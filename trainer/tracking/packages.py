"""Checks that the packages of a job's trackers are installed, without importing them."""

import importlib.util
from collections.abc import Sequence

from periplus.errors import ConfigError


def check_trackers(names: Sequence[str]) -> None:
    """Check that each tracker's package, which has the tracker's name, is installed. Raises: ConfigError."""
    needed = {name: (name, "accelerate") for name in names}
    refusals = [
        f"output.trackers has {name}, but the package {package} is not installed here; pip install 'periplus[{name}]', "
        "or leave it out"
        for name, packages in needed.items()
        for package in packages
        if importlib.util.find_spec(package) is None
    ]
    if refusals:
        raise ConfigError("\n".join(refusals))
