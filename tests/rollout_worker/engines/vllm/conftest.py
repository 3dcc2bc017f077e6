"""Tests with a real vLLM exist where vLLM is installed (`make test-vllm` makes an environment that has it)."""

from importlib.util import find_spec

if find_spec("vllm") is None:
    collect_ignore = [
        "test_architectures.py",
        "test_exported_model.py",
        "test_request_sampling.py",
        "test_served.py",
        "test_tensor_parallel.py",
        "test_vllm_engine.py",
    ]
