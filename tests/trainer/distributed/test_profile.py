"""The measuring process of a trainer, with the smallest built-in model."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from periplus.job.job_file import JobFile, resolve
from periplus.process.measuring import ProfileRequest
from periplus.values.profile import TrainingRow
from trainer.distributed import profile
from trainer.distributed.all_reduce import all_reduce_times
from trainer.distributed.profile import TrainingShape, measure, random_trajectories, training_shapes

GROUPS, SIZE, PROMPT, COMPLETION = 8, 2, 8, 5

Results = Sequence[tuple[str, Any]]


def make_job(**sections: Any) -> JobFile:
    return resolve(
        JobFile.model_validate(
            {
                "name": "measured",
                "environment": {"name": "spell_backward"},
                "algorithm": {"name": "grpo", "group_size": SIZE},
                "sampling": {"prompt_tokens": PROMPT, "max_new_tokens": COMPLETION},
                "train": {"groups_per_step": GROUPS},
            }
            | sections
        )
    )


def text_of(job: JobFile, model_config: str = "") -> str:
    return json.dumps({"job_json": job.to_json(), "model_config": model_config, "num_threads": 1})


def results_of(job: JobFile, num_skipped: int = 0) -> Results:
    said: list[tuple[str, Any]] = []
    num_threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            measure(ProfileRequest.from_json(text_of(job), num_skipped), lambda key, value: said.append((key, value)))
    finally:
        torch.set_num_threads(num_threads)
    return said


@pytest.fixture(autouse=True)
def _without_a_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "can_all_reduce", lambda: False)


@pytest.fixture(scope="module")
def results() -> Iterator[Results]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "can_all_reduce", lambda: False)
        yield results_of(make_job())


def rows_of(results: Results) -> list[TrainingRow]:
    return [TrainingRow(**value) for key, value in results if key == "training"]


def test_the_number_of_rows_comes_first_and_all_rows_are_measured_in_their_order(results: Results) -> None:
    assert results[0] == ("num_rows", 3)
    found = [(row.num_groups, row.group_size, row.prompt_tokens, row.completion_tokens) for row in rows_of(results)]
    assert found == [
        (GROUPS, SIZE, PROMPT, COMPLETION),
        (GROUPS // 4, SIZE, PROMPT, COMPLETION),
        (GROUPS, SIZE, PROMPT, 1),
    ]
    assert all(row.seconds > 0 for row in rows_of(results))


def test_each_figure_is_there_once_and_positive(results: Results) -> None:
    figures = {key: value for key, value in results if key != "training"}
    assert figures.keys() == {
        "num_rows",
        "trainer_start_s",
        "versions",
        "step_s",
        "publish_s",
        "delta_bytes_per_param",
        "trainer_memory_bytes",
    }
    assert figures.pop("versions").keys() >= {"python", "torch", "transformers"}
    assert min(figures.values()) > 0


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"path": "builtin:qwen3-tiny", "lora": {"rank": 2}}},
        {"algorithm": {"name": "ppo", "group_size": SIZE}},
        {"algorithm": {"name": "grpo", "group_size": SIZE, "kl_coefficient": 0.1, "kl_reference": "/nowhere"}},
    ],
    ids=["adapters", "critic", "reference that is not here"],
)
def test_other_jobs_are_measured_and_rows_that_were_measured_before_are_left_out(sections: dict[str, Any]) -> None:
    found = results_of(make_job(**sections), num_skipped=2)
    assert [(row.num_groups, row.completion_tokens) for row in rows_of(found)] == [(GROUPS, 1)]
    assert {"step_s", "publish_s"} <= {key for key, _ in found}


def test_equal_rows_are_left_out() -> None:
    job = make_job(train={"groups_per_step": 1}, sampling={"prompt_tokens": PROMPT, "max_new_tokens": 1})
    assert training_shapes(job) == (TrainingShape(num_groups=1, prompt_tokens=PROMPT, completion_tokens=1),)


def test_samples_of_a_group_share_a_prompt_and_differ_in_reward() -> None:
    shape = TrainingShape(num_groups=2, prompt_tokens=3, completion_tokens=4)
    made = random_trajectories(make_job(), shape, vocab_size=50)
    assert [(each.group, each.sample, each.reward) for each in made] == [
        (0, 0, 0.0),
        (0, 1, 1.0),
        (1, 0, 0.0),
        (1, 1, 1.0),
    ]
    assert made[0].prompt_ids.tolist() == made[1].prompt_ids.tolist() != made[2].prompt_ids.tolist()


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_reduce_together() -> None:
    few_s, many_s = all_reduce_times(1 << 16)
    assert 0 < few_s < 5
    assert 0 < many_s < 5


@pytest.mark.slow
@pytest.mark.processes
def test_a_model_that_transformers_cannot_make_is_a_line_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(text_of(make_job(), json.dumps({"model_type": "nobody-knows"})))
    done = subprocess.run(
        [sys.executable, "-m", "trainer.distributed.profile", str(tmp_path / "request.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "nobody-knows" in json.loads(done.stdout)["problem"]
