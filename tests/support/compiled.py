"""The loops of the weight codec that numba has compiled or loaded from disk in this process, with their signatures."""

import pkgutil
from importlib import import_module

from periplus.codec import weights


def compiled() -> set[tuple[str, str]]:
    found = pkgutil.walk_packages(weights.__path__, f"{weights.__name__}.")
    modules = [import_module(module.name) for module in found]
    loops = {name: loop for module in modules for name, loop in vars(module).items() if hasattr(loop, "signatures")}
    return {(name, str(signature)) for name, loop in loops.items() for signature in loop.signatures}
