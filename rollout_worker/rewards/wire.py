"""The messages between a worker and its reward processes: JSON behind its length, on two pipes.

    worker -> process   {"functions": [...], "folder": ...}          once, what to build
    process -> worker   {"ready": true} or {"refused": text}
    worker -> process   {"call": n, "function": i, "texts": [...]}          any number of times
    process -> worker   {"call": n, "values": [...] or "raised": text}      for the next one, or for all of them

A function that scores one completion at a time answers for each of them, so that a slow one is found. A length that is
too large comes from a process that has written something else into the pipe, and so does an answer to another call.
"""

import json
import re
import struct
from typing import Any

LENGTH = struct.Struct("<I")
"""The length in bytes that stands before each message."""

SURROGATE = re.compile(rb"\\u[dD]")
"""An escaped surrogate. A few other characters are found too, which does no harm."""

MAX_REPLY_BYTES = 1 << 20
"""Largest message from a process, in bytes. Chosen by hand: a number for each of 64 completions, or an error's text."""


def read(content: bytes) -> Any:
    """Return the message of bytes without their length. Raises: ValueError for what is not JSON, or nested too deep."""
    try:
        message = json.loads(content)
    except RecursionError as error:
        raise ValueError("a message that is nested too deep") from error
    if SURROGATE.search(content):  # halves of characters, which are no Unicode text, could not be sent on
        message = json.loads(json.dumps(message, ensure_ascii=False).encode(errors="replace"))
    return message


def framed(message: Any) -> bytes:
    """Return the bytes of a message. Numbers may be infinite or NaN: who reads them judges that."""
    content = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(content)) + content
