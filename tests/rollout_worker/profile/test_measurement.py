"""The measuring process of a worker's engine, with the smallest built-in model."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from periplus.job.job_file import JobFile, resolve
from periplus.process.measuring import ProfileRequest
from periplus.values.profile import GenerationRow
from rollout_worker.profile.engine_bench import GenerationShape, generation_shapes
from rollout_worker.profile.measurement import measure

SLOTS, PROMPT, COMPLETION = 8, 8, 5

Results = Sequence[tuple[str, Any]]


def make_job(**sections: Any) -> JobFile:
    return resolve(
        JobFile.model_validate(
            {
                "name": "measured",
                "environment": {"name": "spell_backward"},
                "algorithm": {"name": "grpo", "group_size": 4},
                "sampling": {"prompt_tokens": PROMPT, "max_new_tokens": COMPLETION},
                "engine": {"max_requests": SLOTS},
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
        measure(ProfileRequest.from_json(text_of(job), num_skipped), lambda key, value: said.append((key, value)))
    finally:
        torch.set_num_threads(num_threads)
    return said


@pytest.fixture(scope="module")
def results() -> Results:
    return results_of(make_job())


def rows_of(results: Results) -> list[GenerationRow]:
    return [GenerationRow(**value) for key, value in results if key == "generation"]


def shape_of(row: GenerationRow) -> GenerationShape:
    return GenerationShape(
        num_samples=row.num_samples, prompt_tokens=row.prompt_tokens, completion_tokens=row.completion_tokens
    )


def test_the_number_of_rows_comes_first_and_all_rows_are_measured_in_their_order(results: Results) -> None:
    expected = generation_shapes(make_job(), SLOTS, 512)
    assert results[0] == ("num_rows", len(expected))
    assert tuple(map(shape_of, rows_of(results))) == expected
    assert [each.num_samples for each in expected] == [1, 2, SLOTS, 2 * SLOTS, SLOTS, SLOTS]
    assert expected[-2:] == (
        GenerationShape(num_samples=SLOTS, prompt_tokens=PROMPT, completion_tokens=1),
        GenerationShape(num_samples=SLOTS, prompt_tokens=2 * PROMPT, completion_tokens=COMPLETION),
    )
    assert {row.num_slots for row in rows_of(results)} == {SLOTS}


def test_each_figure_is_there_once_and_positive(results: Results) -> None:
    figures = {key: value for key, value in results if key != "generation"}
    assert figures.keys() == {
        "num_rows",
        "engine_start_s",
        "versions",
        "load_s",
        "engine_cores",
        "sample_s",
        "engine_memory_bytes",
    }
    assert figures.pop("versions").keys() >= {"python", "torch", "transformers"}
    assert min(figures.values()) > 0
    assert figures["sample_s"] < 0.5
    assert all(row.seconds > 0 for row in rows_of(results))


def test_rows_that_were_measured_before_are_left_out(results: Results) -> None:
    again = results_of(make_job(), num_skipped=5)
    assert again[0] == results[0]
    assert list(map(shape_of, rows_of(again))) == [shape_of(rows_of(results)[-1])]


def test_a_job_with_adapters_and_data_of_its_own_is_measured(tmp_path: Path) -> None:
    data = tmp_path / "problems.jsonl"
    data.write_text("".join(f'{{"prompt": "{number}", "answer": "a"}}\n' for number in range(40)))
    job = make_job(
        model={"path": "builtin:qwen3-tiny", "lora": {"rank": 2}}, environment=None, data={"path": str(data)}
    )
    data.unlink()  # it need not be on this machine
    assert {"load_s", "sample_s"} <= {key for key, _ in results_of(job, num_skipped=6)}


def test_equal_rows_are_left_out_and_those_that_are_longer_than_the_model() -> None:
    job = make_job(sampling={"prompt_tokens": PROMPT, "max_new_tokens": 1})
    assert [each.num_samples for each in generation_shapes(job, 4, None)] == [1, 4, 8, 4]
    assert [each.num_samples for each in generation_shapes(job, 4, PROMPT + 1)] == [1, 4, 8]


@pytest.mark.slow
@pytest.mark.processes
def test_a_model_that_the_engine_cannot_make_is_a_line_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(text_of(make_job(), json.dumps({"model_type": "nobody-knows"})))
    done = subprocess.run(
        [sys.executable, "-m", "rollout_worker.profile", str(tmp_path / "request.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "nobody-knows" in json.loads(done.stdout)["problem"]
