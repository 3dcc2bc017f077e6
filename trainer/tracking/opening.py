"""The first message to a tracker's process: where its files go, which run it writes, and how the job is configured.

A resumed run goes on in the tracker's run of the earlier forks, which is why the message says where the fork begins.
It holds no credential: a tracker finds those in its own variables and files.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REMOTE_OF_TRACKIO = frozenset(
    {
        "TRACKIO_SPACE_ID",
        "TRACKIO_SERVER_URL",
        "TRACKIO_WRITE_TOKEN",
        "TRACKIO_BUCKET_ID",
        "TRACKIO_DATASET_ID",
        "TRACKIO_WEBHOOK_URL",
    }
)
"""Variables with which trackio would send records to another machine."""

_OF_RANKS = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerOpening:
    """What one tracker's process is told before the first row.

    - `folder`: absolute path of the tracker's files. `name`: name of the job. `job_id`: its id, which names the run.
    - `first_row`: number of records that earlier forks wrote. No earlier fork has sent as many rows as this or more.
    - `resumed_version`: version of the checkpoint that this fork goes on from, or None for a new run.
    - `configuration`: every key of the job with its value, by dotted name.
    """

    tracker: str
    folder: str
    name: str
    job_id: str
    first_row: int
    resumed_version: int | None
    configuration: Mapping[str, str | float | bool]

    def to_json(self) -> str:
        """Return the message as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "TrackerOpening":
        """Return the message of a line that `to_json` made."""
        return cls(**json.loads(line))


def flat_configuration(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str | float | bool]:
    """Return the values of nested mappings by dotted names. A list is JSON text; a key without a value is `null`."""
    flat: dict[str, str | float | bool] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flat_configuration(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str | int | float | bool) else json.dumps(value)
    return flat


def tracker_environment(opening: TrackerOpening, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a tracker's process, given those of the trainer.

    wandb is offline unless the trainer's environment says otherwise. trackio stays on this machine: it is not told of
    any server, and does not ask the Hugging Face Hub for the account of a token.
    """
    left_out = _OF_RANKS | (REMOTE_OF_TRACKIO if opening.tracker == "trackio" else frozenset())
    variables = {name: value for name, value in environment.items() if name not in left_out}
    # A tracker computes nothing: it needs no GPU and no threads.
    variables |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    if opening.tracker == "wandb":
        variables.setdefault("WANDB_MODE", "offline")
    if opening.tracker == "trackio":
        variables |= {"TRACKIO_DIR": opening.folder, "HF_HUB_OFFLINE": "1"}
    return variables


def tracker_folder(trackers: Path, tracker: str) -> str:
    """Return the absolute path of one tracker's files."""
    return os.path.abspath(trackers / tracker)
