import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.errors import ConfigError
from periplus.values.machine import Pace
from periplus.values.task import (
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_SUCCEEDED,
    FailureCause,
    Role,
    TaskOutcome,
    TaskSpec,
    TaskState,
    authority_key_of,
)
from tests.support.keys import JOB_SECRET

SPEC = TaskSpec(
    task_id="j/eu/rollout-0",
    job_id="j",
    role=Role.ROLLOUT,
    region="eu",
    job_json="{}",
    plan_json="",
    fork=1,
    resume_from="",
    gateway="127.0.0.1:1",
    run_dir="/r",
    status_file="/r/s",
    num_threads=2,
    authority_key="ab" * 32,
    job_secret=JOB_SECRET,
)

PACE = Pace(prefill_s=0.001, decode_s=0.02, training_s=0.0)


def test_a_spec_is_read_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "task.json"
    path.write_text(SPEC.to_json())
    assert TaskSpec.load(path) == SPEC


def test_a_spec_carries_the_pace_of_an_emulated_device(tmp_path: Path) -> None:
    path, paced = tmp_path / "task.json", dataclasses.replace(SPEC, pace=PACE)
    path.write_text(paced.to_json())
    assert TaskSpec.load(path) == paced
    without = {name: value for name, value in json.loads(SPEC.to_json()).items() if name != "pace"}
    path.write_text(json.dumps(without))
    assert TaskSpec.load(path) == SPEC


@pytest.mark.parametrize(
    "pace",
    [
        5,
        "fast",
        [],
        {},
        {"prefill_s": 0.1},
        dataclasses.asdict(PACE) | {"speed": 1},
        dataclasses.asdict(PACE) | {"decode_s": "0.1"},
        dataclasses.asdict(PACE) | {"decode_s": -0.1},
        dataclasses.asdict(PACE) | {"training_s": float("inf")},
    ],
)
def test_a_task_file_with_a_malformed_pace_is_a_config_error_that_names_it(tmp_path: Path, pace: object) -> None:
    path = tmp_path / "task.json"
    path.write_text(json.dumps(json.loads(SPEC.to_json()) | {"pace": pace}))
    with pytest.raises(ConfigError, match=r"task\.json"):
        TaskSpec.load(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "5", "{}", SPEC.to_json().replace('rollout"', 'cook"'), json.dumps({"role": "trainer"})]
)
def test_what_is_no_task_file_is_a_config_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "task.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"task\.json"):
        TaskSpec.load(path)


def test_a_missing_task_file_is_a_config_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        TaskSpec.load(tmp_path / "nowhere")


def test_the_authoritys_key_is_32_bytes_in_hexadecimal() -> None:
    assert authority_key_of(SPEC) == bytes.fromhex("ab" * 32)


@pytest.mark.parametrize("text", ["", "ab" * 31, "ab" * 33, "xy" * 32, "ab" * 31 + "a"])
def test_another_key_is_a_config_error_that_names_the_task(text: str) -> None:
    with pytest.raises(ConfigError, match=r"j/eu/rollout-0.*job authority"):
        authority_key_of(dataclasses.replace(SPEC, authority_key=text))


@given(st.sampled_from(TaskState), st.text(max_size=20), st.sampled_from(FailureCause), st.integers(-15, 255))
def test_the_last_word_of_a_process_counts_for_more_than_its_exit_code(
    state: TaskState, message: str, cause: FailureCause, code: int
) -> None:
    outcome = TaskOutcome(state=state, message=message, cause=cause)
    assert TaskOutcome.of_exit(code, outcome.to_json()) == outcome


@pytest.mark.parametrize("status", ["", "{", "[]", "{}", '{"state": "confused", "message": ""}'])
@pytest.mark.parametrize(
    ("code", "state"),
    [
        (EXIT_SUCCEEDED, TaskState.SUCCEEDED),
        (EXIT_STOPPED, TaskState.STOPPED),
        (EXIT_FAILED, TaskState.FAILED),
        (-9, TaskState.FAILED),
        (-15, TaskState.STOPPED),
    ],
)
def test_a_process_without_a_last_word_is_classified_by_its_exit_code(status: str, code: int, state: TaskState) -> None:
    assert TaskOutcome.of_exit(code, status).state is state


def test_a_killed_process_says_which_signal() -> None:
    assert "signal 9" in TaskOutcome.of_exit(-9, "").message
