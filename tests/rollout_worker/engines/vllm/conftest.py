"""Tests with a real vLLM exist where vLLM is installed (`make test-vllm` makes an environment that has it)."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.engines.vllm.running import RunningVllm

if find_spec("vllm") is None:
    collect_ignore = [
        "test_architectures.py",
        "test_ray_executor.py",
        "test_request_sampling.py",
        "test_served.py",
        "test_tensor_parallel.py",
        "test_vllm_engine.py",
    ]


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[RunningVllm]":
    """The one engine of all tests of a model with tied weights. The last test of test_vllm_engine.py kills it."""
    from tests.support.engines.vllm.running import running_vllm
    from tests.support.engines.vllm.small_model import SmallModel

    with running_vllm(tmp_path_factory.mktemp("model"), SmallModel(tied=True, num_versions=6)) as running:
        yield running
