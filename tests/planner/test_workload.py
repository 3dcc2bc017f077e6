from pathlib import Path

import pytest

from periplus.config import validate
from periplus.errors import ConfigError
from periplus.job import JobFile, resolve
from planner.checkpoint import published_bytes
from planner.workload import BUILTIN_BYTES, PROCESS_BYTES, workload_of
from trainer.model import BUILTIN, resolve_model_dir


def job_json(model: str = "builtin:qwen3-tiny") -> str:
    tree = {
        "name": "a",
        "model": {"path": model},
        "environment": {"name": "chain_sum"},
        "regions": {"trainer": "x", "rollout": ["y"], "min": 2},
        "plan": {"workers_per_region": 3},
    }
    return resolve(validate(JobFile, tree, "job")).to_json()


def test_a_workload_says_what_the_job_says() -> None:
    workload = workload_of(job_json())
    assert (workload.trainer_region, workload.rollout_regions, workload.min_regions) == ("x", ("y",), 2)
    assert (workload.workers_per_region, workload.staleness, workload.algorithm) == (3, 2, "grpo")


def test_memory_grows_with_the_model() -> None:
    workload = workload_of(job_json("/models/large"), 10**9)
    assert workload.model_bytes == 10**9
    assert workload.trainer_memory_bytes == PROCESS_BYTES + 10**10


def test_a_model_that_cannot_be_seen_has_no_size() -> None:
    workload = workload_of(job_json("/models/absent"), published_bytes("/models/absent"))
    assert workload.model_bytes is None
    assert workload.trainer_memory_bytes == PROCESS_BYTES


@pytest.mark.parametrize("name", BUILTIN)
def test_the_size_of_a_builtin_is_that_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    assert BUILTIN_BYTES[name] == published_bytes(str(resolve_model_dir(name, tmp_path, seed=0)))


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for content in (b"", b"\xff" * 64, (4).to_bytes(8, "little") + b"[{}]", (2).to_bytes(8, "little") + b"{x"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="not a safetensors file"):
            published_bytes(str(tmp_path))
