from dataclasses import replace
from pathlib import Path

import pytest

from periplus.errors import ConfigError
from periplus.job.model_section import BUILTIN
from periplus.values.safetensors_format import safetensors_head
from planner.files.hub_checkpoint import published_bytes, visible_architecture
from planner.jobs.needs import BUILTIN_BYTES, PROCESS_BYTES, needs_of
from tests.support.planner.hosts import GB, NEEDS, host, tiny_job
from trainer.data.model import resolve_model_dir


def test_needs_say_what_the_job_says() -> None:
    needs = needs_of(
        tiny_job(
            regions={"trainer": "x", "rollout": ["y"], "min": 2, "max": 3, "forbid": ["z"]},
            plan={"workers_per_region": 3},
        )
    )
    assert (needs.trainer_region, needs.rollout_regions, needs.forbidden_regions) == ("x", ("y",), ("z",))
    assert (needs.min_regions, needs.max_regions, needs.workers_per_region) == (2, 3, 3)
    assert (needs.staleness, needs.algorithm) == (2, "grpo")
    assert [needs.may_train(name) for name in "xyz"] == [True, False, False]
    assert [needs.may_roll_out(host(name)) for name in "xyz"] == [False, True, False]


def test_workers_need_a_host_with_the_jobs_engine() -> None:
    needs = needs_of(tiny_job(engine={"name": "vllm"}))
    engines: tuple[tuple[str, ...] | None, ...] = (None, (), ("torch",), ("torch", "vllm"))
    assert [needs.may_roll_out(replace(host("a"), engines=each)) for each in engines] == [True, False, False, True]
    assert needs.may_train("a")


def test_own_code_runs_where_a_region_allows_it_or_does_not_say() -> None:
    own = needs_of(tiny_job(reward={"functions": ({"path": "my_rewards:score"},)}))
    allowed: tuple[bool | None, ...] = (None, False, True)
    assert [own.may_roll_out(replace(host("a"), allows_own_code=each)) for each in allowed] == [True, False, True]
    assert all(needs_of(tiny_job()).may_roll_out(replace(host("a"), allows_own_code=each)) for each in allowed)


def test_a_job_that_names_servers_needs_no_engine_of_its_hosts() -> None:
    needs = needs_of(tiny_job(engine={"name": "vllm", "url": ["http://10.0.0.7:8000"]}))
    assert needs.may_roll_out(replace(host("a"), engines=()))
    assert needs.rollout_memory_bytes == needs_of(tiny_job()).rollout_memory_bytes


def test_vllm_needs_memory_for_its_processes_and_its_cache() -> None:
    small, large = (
        needs_of(tiny_job(engine={"name": "vllm", "tensor_parallel": 2, "kv_cache_gib": gib})) for gib in (0.5, 4)
    )
    torch = needs_of(tiny_job())
    assert small.rollout_memory_bytes - torch.rollout_memory_bytes == 3 << 30
    assert large.rollout_memory_bytes - small.rollout_memory_bytes == 7 << 30
    assert large.trainer_memory_bytes == torch.trainer_memory_bytes


def test_memory_grows_with_the_model() -> None:
    needs = needs_of(tiny_job(model={"path": "/models/large"}), GB)
    assert needs.model_bytes == GB
    assert needs.trainer_memory_bytes == PROCESS_BYTES + 10 * GB


def test_a_host_holds_what_runs_there_together() -> None:
    assert NEEDS.has_room(host("a", memory_gb=6), trains=True, rolls_out=True)
    assert not NEEDS.has_room(host("a", memory_gb=5), trains=True, rolls_out=True)
    assert NEEDS.has_room(host("a", memory_gb=5), trains=True, rolls_out=False)
    assert NEEDS.has_room(host("a", memory_gb=0), trains=True, rolls_out=True), "0 binds nothing"


def test_a_model_that_cannot_be_seen_has_no_size_and_no_shape() -> None:
    job = tiny_job(model={"path": "/models/absent"})
    assert needs_of(job, published_bytes(job.model.path)).model_bytes is None
    assert visible_architecture(job.model.path) is None


@pytest.mark.parametrize("name", BUILTIN)
def test_the_size_of_a_builtin_is_that_of_its_checkpoint_and_of_its_shape(name: str, tmp_path: Path) -> None:
    assert BUILTIN_BYTES[name] == published_bytes(str(resolve_model_dir(name, tmp_path, seed=0)))
    shape = visible_architecture(name)
    assert shape is not None
    assert 2 * shape.num_params == BUILTIN_BYTES[name]


def test_a_model_of_another_family_has_a_size_but_no_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert visible_architecture(str(tmp_path)) is None


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    damaged = (b"", b"\xff" * 64, (4).to_bytes(8, "little") + b"[{}]", (2).to_bytes(8, "little") + b"{x")
    cut_short = safetensors_head([("w", "BF16", (2, 2))], {}) + bytes(7)
    for content in (*damaged, (100_000).to_bytes(8, "little") + b"[" * 100_000, cut_short):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="not a safetensors file"):
            published_bytes(str(tmp_path))
