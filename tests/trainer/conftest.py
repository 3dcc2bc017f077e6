"""A model small enough for every test of the trainer."""

from typing import Any

import pytest

from tests.support.trainer.learning import tiny_model


@pytest.fixture
def model() -> Any:
    return tiny_model()
