"""Which settings of an engine go together."""

import json
from typing import Any

import pytest

from periplus.errors import ConfigError
from periplus.job.job_file import JobFile, resolve


def job(**engine: Any) -> JobFile:
    environment = {"name": "spell_backward"}
    tree = {"name": "x", "environment": environment, "data": {"size": 5000}, "engine": engine}
    return JobFile.model_validate_json(json.dumps(tree))


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"name": "torch", "dtype": "bfloat16", "on_swap": "drain", "max_requests": 4},
        {"name": "vllm", "tensor_parallel": 2, "kv_cache_gib": 0.5, "on_swap": "reprefill"},
        {"name": "vllm", "gpu_share": 0.45},
        {"name": "vllm", "url": ["http://10.0.0.7:8000", "https://other/base"]},
    ],
)
def test_settings_that_the_engine_has_are_kept(engine: dict[str, Any]) -> None:
    kept = resolve(job(**engine)).engine.model_dump(mode="json")
    assert {key: kept[key] for key in engine} == engine


@pytest.mark.parametrize("name", ["torch", "vllm"])
def test_every_engine_takes_jobs_with_adapters(name: str) -> None:
    tree = job(name=name).model_dump(mode="json")
    tree["model"]["lora"] = {"rank": 2}
    resolved = resolve(JobFile.model_validate_json(json.dumps(tree)))
    assert (resolved.engine.name, resolved.model.lora is not None) == (name, True)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"tensor_parallel": 2}, "engine.tensor_parallel is 2"),
        ({"kv_cache_gib": 2}, "engine.kv_cache_gib is 2"),
        ({"gpu_share": 0.5}, "engine.gpu_share is 0.5"),
        ({"name": "vllm", "gpu_share": 0.5, "kv_cache_gib": 2}, "leave one of them out"),
        ({"url": ["http://a"]}, "engine.url is"),
        ({"name": "vllm", "url": ["10.0.0.7:8000"]}, "no http or https URL"),
        ({"name": "vllm", "url": ["http://a", "http://a"]}, "twice"),
        ({"name": "vllm", "url": ["http://a"], "tensor_parallel": 2}, "whoever started the servers"),
        ({"name": "vllm", "url": ["http://a"], "gpu_share": 0.5}, "whoever started the servers"),
        ({"name": "vllm", "url": ["http://a"], "dtype": "bfloat16"}, "whoever started the servers"),
    ],
)
def test_settings_that_it_does_not_have_are_refused_with_what_to_do(engine: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(job(**engine))


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", "sglang"), ("on_swap", "never"), ("max_requests", 3), ("dtype", "float16")],
)
def test_values_out_of_range_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        job(**{key: value})


def test_workers_that_would_share_servers_are_refused() -> None:
    shared = job(name="vllm", url=["http://a"])
    assert resolve(shared).engine.url == ("http://a",)
    shared = shared.model_copy(update={"plan": shared.plan.model_copy(update={"workers_per_region": 2})})
    with pytest.raises(ConfigError, match=r"write over each other's weights; set plan\.workers_per_region=1"):
        resolve(shared)
