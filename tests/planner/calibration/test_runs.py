"""What the steps of runs took becomes rows, and types that predict them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from periplus.errors import ConfigError
from periplus.job.job_file import JobFile
from periplus.job.run_directory import RunDirectory
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from planner.calibration.efficiencies import generation_s, training_s
from planner.calibration.runs import calibrated_types, profiles_of_runs
from planner.devices.catalogue import architecture
from tests.support.planner.hosts import tiny_job

QWEN = architecture("builtin:qwen3-tiny")
STEP = {
    "step_s": 0.7,
    "train_s": 0.4,
    "wait_s": 0.1,
    "publish_s": 0.05,
    "num_samples": 512.0,
    "completion_tokens_mean": 5.0,
    "tokens_per_s_region/home": 512 * 5 / 0.7 / 2,
    "tokens_per_s_region/far": 512 * 5 / 0.7 / 2,
    "generation_s_region/home": 0.2,
    "generation_s_region/far": 0.3,
    "weights_s_region/home": 0.08,
    "weights_s_region/far": 0.5,
}


def run_of(folder: Path, job: JobFile, steps: int = 4, **changes: float) -> Path:
    """A directory as a run of two regions of cores leaves it. Its first two steps took ten times as long."""
    run = RunDirectory(folder)
    run.create()
    run.config.write_text(yaml.safe_dump(job.model_dump(mode="json") | {"schema": "periplus.job/1"}))
    rows = [{"task": "trainer", "region": "home", "num_workers": 1}]
    rows += [{"task": "rollout", "region": name, "num_workers": 1} for name in ("home", "far")]
    plan = {"schema": "periplus.plan/1", "method": "by hand", "trainer_region": "home", "assignments": rows}
    run.plan.write_text(json.dumps(plan))
    for number in range(steps):
        by = 10.0 if number < 2 else 1.0
        values = {name: value * by if name.endswith("_s") else value for name, value in (STEP | changes).items()}
        run.append(Record(kind=RecordKind.STEP, policy=Policy(0, number + 1), time_s=1.0, values=values))
    return folder


def job(**changes: Any) -> JobFile:
    return tiny_job(algorithm={"group_size": 8} | changes, train={"groups_per_step": 64})


def test_steps_become_rows_of_what_ran_and_the_first_ones_do_not_count(tmp_path: Path) -> None:
    _, found = profiles_of_runs([run_of(tmp_path / "a", job())])
    profile = found["cpu"]
    (trained,) = profile.training
    assert (trained.num_groups, trained.group_size, trained.completion_tokens) == (64, 8, 5)
    assert trained.seconds == pytest.approx(0.4)
    assert {(row.num_samples, round(row.seconds, 6)) for row in profile.generation} == {(256, 0.2), (256, 0.3)}
    assert profile.host.step_s == pytest.approx(0.2)
    assert profile.host.held_s == pytest.approx(0.08), "the far region's link is no part of it"


def test_several_runs_make_one_type_that_predicts_them(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / "a", job()), run_of(tmp_path / "b", job(), num_samples=256.0, train_s=0.21)]
    (found,) = calibrated_types(runs)
    _, profiles = profiles_of_runs(runs)
    assert found.gpu.name == "cpu"
    assert found.after < 0.2 < found.before
    for row in profiles["cpu"].training:
        whole_s = row.seconds + profiles["cpu"].host.step_s
        assert training_s(found.gpu.for_training, QWEN, row, 0) == pytest.approx(whole_s, rel=0.15)
    busy = [generation_s(found.gpu, QWEN, row) for row in profiles["cpu"].generation]
    assert min(busy) > 0.15
    assert found.gpu.source.startswith("6 rows on the run a, the run b, ")


def test_a_step_with_a_critic_or_a_reference_says_nothing_of_training_alone(tmp_path: Path) -> None:
    _, found = profiles_of_runs([run_of(tmp_path / "a", job(kl_coefficient=0.1))])
    assert found["cpu"].training == ()
    assert len(found["cpu"].generation) == 2


def test_runs_that_say_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="short has no step after its first 2"):
        profiles_of_runs([run_of(tmp_path / "short", job(), steps=2)])
    other = tiny_job(model={"path": "builtin:qwen3-tiny-h32"}, algorithm={"group_size": 8})
    runs = [run_of(tmp_path / "a", job()), run_of(tmp_path / "b", other)]
    with pytest.raises(ConfigError, match=r"b is a run of builtin:qwen3-tiny-h32 with torch, and .*a one of"):
        profiles_of_runs(runs)
