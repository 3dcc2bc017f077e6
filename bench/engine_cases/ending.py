"""The end of a program that has used vLLM in its own process."""

import os
import sys
from collections.abc import Callable


def run_and_end(main: Callable[[], int | None]) -> None:
    """Call `main` and end the process with its exit code, without the interpreter's clean-up.

    Threads of vLLM's native code outlive the engine. Now and then one of them aborts the process while the interpreter
    shuts down under it ("terminate called without an active exception"), after all results were printed.
    """
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
