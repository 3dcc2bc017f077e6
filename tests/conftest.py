"""Settings of all tests: hypothesis has no limit of time for an example, and the root logger stays as it was found.

gRPC starts its threads again in a forked child, unless it is told not to. The sandbox of rewards forks, and the kernel
gives new namespaces only to a process of one thread. Reward processes load no gRPC; a process of tests has.

Tests expect the results of CPUs, so they and the processes that they start see no GPU, unless `-m cuda` asks for one.

The default limit of 200 ms an example fails by chance on a machine that does other work. Limits of time are those of
pytest-timeout.

A shell starts its background jobs with interrupts ignored, and processes inherit that: tests that interrupt a process
want it answered, however they were started.

Libraries and tests are in memory until the end: the collector of cycles leaves them out, and comes less often.

gRPC has one queue of events for all event loops of a process. What is late for the loop of one test comes to the loop
of the next, which logs that the first is closed. A program has one loop, so this is no output of the program.
"""

import gc
import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.cases.examples import PERCENT

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

settings.register_profile("periplus", deadline=None, max_examples=PERCENT)
settings.load_profile("periplus")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("markexpr") != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    logging.getLogger("asyncio").addFilter(lambda record: "PollerCompletionQueue" not in record.getMessage())


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(autouse=True)
def _root_logger_is_restored() -> Iterator[None]:
    """Commands that run within a test configure the root logger as a service does."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
