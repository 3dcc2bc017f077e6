"""Redirect what native code prints to standard error, so that a solver's own lines do not end up in a command's result.

Native code writes to file descriptor 1 directly, so replacing `sys.stdout` would not be enough.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_STDOUT, _STDERR = 1, 2


@contextmanager
def native_output_on_stderr() -> Iterator[None]:
    """Make file descriptor 1 standard error while the context lasts. Nothing may print a result in the meantime."""
    # What was printed so far must not end up on standard error with the redirected lines.
    _flush()
    # The duplicate keeps standard output open while descriptor 1 is another file.
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        # Buffers of native code still belong to standard error.
        _flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _flush() -> None:
    """Flush Python's buffer of standard output and those of the C library, which a solver uses."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
