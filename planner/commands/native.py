"""What native code prints goes to standard error: a solver's own lines must not end up in a command's result."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_STDOUT, _STDERR = 1, 2


@contextmanager
def native_output_on_stderr() -> Iterator[None]:
    """While it lasts, file descriptor 1 is standard error. Nothing else may print a result meanwhile."""
    _flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        _flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _flush() -> None:
    """Python's buffer, and the C library's, which a solver shares."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
