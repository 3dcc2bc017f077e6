"""The kinds of reward functions by name. A function's module is imported only where it is built."""

import importlib
from types import MappingProxyType

from periplus.environment.rewards import NAMED
from periplus.environment.rewards.completions import BatchFunction, Settings, SingleFunction

ROOM = "rollout_worker.rewards.functions"
MODULES = MappingProxyType({**NAMED, "code": f"{ROOM}.code", "model": f"{ROOM}.model", "path": f"{ROOM}.own"})
"""The module of each kind of function that runs in a process, by the kind."""


def build_function(kind: str, settings: Settings) -> BatchFunction | SingleFunction:
    """Return the function of a kind. Raises: what its module's `build` raises."""
    module = importlib.import_module(MODULES[kind])
    function: BatchFunction | SingleFunction = module.build(settings)
    return function
