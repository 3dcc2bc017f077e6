"""Every test leaves the root logger as it found it."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _root_logger_is_restored() -> Iterator[None]:
    """Commands that run within a test configure the root logger as a service does."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
