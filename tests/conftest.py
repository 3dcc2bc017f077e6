"""Settings of all tests: hypothesis has no limit of time for an example, and the root logger stays as it was found.

The default limit of 200 ms an example fails by chance on a machine that does other work. Limits of time are those of
pytest-timeout.
"""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("periplus", deadline=None)
settings.load_profile("periplus")


@pytest.fixture(autouse=True)
def _root_logger_is_restored() -> Iterator[None]:
    """Commands that run within a test configure the root logger as a service does."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
