"""Starts daemon threads for native code, such as a solver, that a process may have to leave running when it exits.

A caller may stop waiting for such a thread. If one still runs at the end, the process must exit with `os._exit`: native
code may abort the process when the interpreter shuts down under it.
"""

import threading
from collections.abc import Callable

_NAME = "may-be-left-alone"


def start(run: Callable[[], None]) -> None:
    """Call `run` in a daemon thread, for which the process does not wait when it exits."""
    threading.Thread(target=run, daemon=True, name=_NAME).start()


def is_any_running() -> bool:
    """Return whether a thread that `start` started still runs."""
    return any(thread.name == _NAME for thread in threading.enumerate())
