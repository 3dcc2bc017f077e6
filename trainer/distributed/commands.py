"""The commands that rank 0 sends the other ranks. They travel pickled.

Each names a part of the training in which all ranks take part, with what the other ranks need for it. Rank 0 does its
own part at the same time.

Rank 0 sends them over the connection that each follower opened to it, on which both have proved that they know a key
(followers.py). So nobody else can send commands, and a follower whose connection ends knows that rank 0 is gone.
"""

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from periplus.values.policy import Policy
from trainer.learning.batch import Sample

BEAT = b"\0"
"""What a follower sends rank 0 while it lives, beside the reason of its end."""

READY = b"\1"
"""What a follower sends once it has imported what it needs and can join."""

KEY_VARIABLE = "PERIPLUS_RANK_KEY"
"""Environment variable of a follower with the key of the connection to rank 0, in hexadecimal."""

BEAT_S = 2.0
"""Seconds between two beats. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLearner:
    """Build the learner of a job, and divide its models among the ranks.

    `job_json` is the resolved job, in which nothing about forward passes is left open. `model_class` and `model_config`
    describe the actor, of which only rank 0 has the weights.
    """

    job_json: str
    model_class: type[Any]
    model_config: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRanks:
    """Join the other ranks. It is sent once all of them are ready, for they wait only a short time for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStep:
    """Take one training step (`Learner.step`)."""

    samples: tuple[Sample, ...]
    consumer: Policy
    learning_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstVersion:
    """Round this rank's rows as the first version that is published, and send them to rank 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeVersion:
    """Round this rank's rows as a version, and send what has changed to rank 0 beside the commands that follow."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProbeWeights:
    """Compute the log-probabilities of the probe's prompts: token ids of the shape [R prompts, P tokens]."""

    ids_RP: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRows:
    """Write this rank's rows, while rank 0 saves a checkpoint (trainer/checkpointing/checkpoint.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRows:
    """Load this rank's rows, while rank 0 restores a checkpoint (trainer/checkpointing/restoration.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRows:
    """Send this rank's rows to rank 0, which writes the final model (trainer/checkpointing/export.py)."""


Command = (
    BuildLearner
    | JoinRanks
    | TrainStep
    | FirstVersion
    | TakeVersion
    | ProbeWeights
    | SaveRows
    | RestoreRows
    | ExportRows
)


def packed(command: Command) -> bytes:
    """Return a command as bytes."""
    return pickle.dumps(command)


def unpacked(data: bytes) -> Command:
    """Return the command of these bytes. They must come from the trainer's own rank 0."""
    command: Command = pickle.loads(data)
    return command
