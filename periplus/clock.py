"""The clocks of the product. Only code with I/O calls them; code that decides gets the time as an argument `now_s`."""

import time


def unix_s() -> float:
    """Return the Unix time in seconds, for people and records."""
    return time.time()


def monotonic_s() -> float:
    """Return seconds since an arbitrary point, which never go back, for durations and deadlines."""
    return time.monotonic()


def process_s() -> float:
    """Return the processor seconds of this process, for rates that other processes must not influence."""
    return time.process_time()
