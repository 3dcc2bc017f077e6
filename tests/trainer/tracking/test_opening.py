"""What a tracker's process is told, and which variables it gets."""

from pathlib import Path

import pytest

from periplus.values.task import Role
from tests.support.tiny_job import task_of, tiny_job
from trainer.tracking.opening import TrackerOpening, flat_configuration, tracker_environment, tracker_folder


def opening_of(tracker: str, folder: Path) -> TrackerOpening:
    return TrackerOpening(
        tracker=tracker,
        folder=tracker_folder(folder, tracker),
        name="tiny",
        job_id="job-1",
        first_row=0,
        resumed_version=None,
        configuration={"seed": 1},
    )


def test_the_configuration_is_every_key_with_a_plain_value(tmp_path: Path) -> None:
    job = tiny_job(tmp_path)
    flat = flat_configuration(job.model_dump(mode="json"))
    assert (flat["seed"], flat["algorithm.group_size"], flat["optimizer.betas"]) == (1, 8, "[0.9, 0.95]")
    assert (flat["environment"], flat["train.filter_groups"]) == ("null", False)
    assert all(isinstance(value, str | int | float | bool) for value in flat.values())
    assert task_of(job, Role.TRAINER, tmp_path).authority_key not in flat.values()


@pytest.mark.parametrize(("given", "mode"), [({}, "offline"), ({"WANDB_MODE": "online"}, "online")])
def test_wandb_is_offline_unless_the_trainers_environment_says_otherwise(
    tmp_path: Path, given: dict[str, str], mode: str
) -> None:
    assert tracker_environment(opening_of("wandb", tmp_path), given)["WANDB_MODE"] == mode


def test_trackio_stays_on_this_machine(tmp_path: Path) -> None:
    given = {"TRACKIO_SPACE_ID": "me/space", "TRACKIO_SERVER_URL": "https://there", "HOME": "/home/me"}
    variables = tracker_environment(opening_of("trackio", tmp_path), given)
    assert variables.keys() & given.keys() == {"HOME"}
    assert (variables["TRACKIO_DIR"], variables["HF_HUB_OFFLINE"]) == (str(tmp_path / "trackio"), "1")


def test_a_tracker_is_no_rank_and_sees_no_gpu(tmp_path: Path) -> None:
    variables = tracker_environment(opening_of("tensorboard", tmp_path), {"LOCAL_RANK": "0", "WORLD_SIZE": "2"})
    assert variables == {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def test_the_first_message_survives_its_line(tmp_path: Path) -> None:
    opening = opening_of("wandb", tmp_path)
    assert TrackerOpening.from_json(opening.to_json()) == opening
