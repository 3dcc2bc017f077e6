"""Threads that may be left alone inside native code, such as a solver's, which aborts if the interpreter ends first.

Who waits for such a thread may give up; the process must then be ended without the interpreter's own clean-up.
"""

import threading
from collections.abc import Callable

_NAME = "may-be-left-alone"


def start(run: Callable[[], None]) -> None:
    """Run it in a thread that no exit waits for."""
    threading.Thread(target=run, daemon=True, name=_NAME).start()


def is_any_running() -> bool:
    """Whether one of them has not ended."""
    return any(thread.name == _NAME for thread in threading.enumerate())
