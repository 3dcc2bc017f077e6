"""The only door to the time of day. What decides takes `now_s` as an argument; shells ask here."""

import time


def unix_s() -> float:
    """Seconds since 1970: for people and records."""
    return time.time()


def monotonic_s() -> float:
    """Seconds since an arbitrary point, never going back: for durations and deadlines."""
    return time.monotonic()


def process_s() -> float:
    """Seconds that the processor spent on this process: for rates that other processes must not spoil."""
    return time.process_time()
