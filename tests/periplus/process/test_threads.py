"""A thread that may be left alone is known until it ends; other threads are not counted."""

import threading
import time

from periplus.process import threads


def test_only_threads_that_may_be_left_alone_are_counted_and_only_until_they_end() -> None:
    go_on = threading.Event()

    def wait() -> None:
        go_on.wait()

    other = threading.Thread(target=wait, daemon=True)
    other.start()
    assert not threads.is_any_running()
    threads.start(wait)
    assert threads.is_any_running()
    go_on.set()
    end_s = time.monotonic() + 5
    while threads.is_any_running() and time.monotonic() < end_s:
        time.sleep(0.01)
    assert not threads.is_any_running()
