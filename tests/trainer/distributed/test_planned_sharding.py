"""How ranks divide a model: what the job says, else what the plan has, else what fits."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from periplus.values.task import Role
from tests.support.tiny_job import task_of, tiny_job
from tests.support.trainer.learning import make_job, tiny_model
from trainer import recipe
from trainer.config import TrainerConfig
from trainer.recipe import settled


@pytest.mark.parametrize(("plan", "expected"), [("hybrid", "hybrid"), ("", ""), (None, "")])
def test_a_trainer_knows_its_plans_sharding_and_leaves_the_job_as_it_is(
    tmp_path: Path, plan: str | None, expected: str
) -> None:
    rows = [{"task": "rollout", "sharding": "full"}, {"task": "trainer", "sharding": plan}]
    plan_json = "" if plan is None else json.dumps({"assignments": rows})
    task = task_of(tiny_job(tmp_path), Role.TRAINER, tmp_path, gateway="127.0.0.1:1")
    config = TrainerConfig.of_task(replace(task, plan_json=plan_json, data=4))
    assert config.planned_sharding == expected
    assert (config.job.train.devices, config.job.train.sharding) == (4, "auto"), "a resumed job is compared with it"


@pytest.mark.parametrize(
    ("of_job", "planned", "ranks", "expected"),
    [
        ("auto", "hybrid", (2, 2), "hybrid"),
        ("auto", "hybrid", (2, 1), "none"),
        ("auto", "full", (2, 2), "full"),
        ("auto", "", (2,), "none"),
        ("full", "none", (2,), "full"),
        ("hybrid", "", (2, 1), "full"),
        ("hybrid", "", (1, 1), "none"),
    ],
)
def test_a_plan_decides_what_the_job_leaves_open(
    of_job: str, planned: str, ranks: tuple[int, ...], expected: str
) -> None:
    job = make_job(train={"sharding": of_job})
    assert settled(job, tiny_model(), torch.device("cpu"), ranks, planned).train.sharding == expected


@pytest.mark.parametrize(
    ("copy_of_free", "planned", "expected"),
    [(0.4, "", "none"), (0.6, "", "full"), (0.6, "none", "none"), (0.8, "none", "full")],
)
def test_a_copy_that_leaves_a_gpu_too_little_memory_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, copy_of_free: float, planned: str, expected: str
) -> None:
    monkeypatch.setattr(recipe, "_compute_dtype", lambda job, model, device: torch.float32)
    monkeypatch.setattr(recipe, "free_device_bytes", lambda device: 1 << 30)
    monkeypatch.setattr(
        recipe, "_taken_bytes", lambda job, model, device, kind, num_ranks: int((1 << 30) * copy_of_free / num_ranks)
    )
    monkeypatch.setattr(recipe, "pass_plan", lambda *arguments: SimpleNamespace(tokens=64, recompute=False))
    job = make_job(train={"dtype": "float32"})
    found = settled(job, tiny_model(), torch.device("cuda"), (2,), planned)
    assert found.train.sharding == expected
