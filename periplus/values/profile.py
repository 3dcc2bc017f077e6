"""Profile of a machine: how long it takes for the work of one model, measured with the runtime's engine and trainer.

An agent measures it with processes of its own (region_agent/profiling.py), keeps it, and tells the coordinator with its
inventory. The planner fits the efficiencies of a device type to it (`planner.calibration`). Fields are keys of its
file, `periplus.profile/1`.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from periplus.config import loading

SCHEMA = "periplus.profile/1"
"""Name and version of the format of profiles."""

Count = Annotated[int, Field(ge=0, le=10**12)]
Positive = Annotated[int, Field(ge=1, le=10**9)]
Measured = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRow:
    """Seconds in which one engine makes `num_samples` samples that are submitted at once.

    All have `prompt_tokens` and `completion_tokens`, and at most `num_slots` decode at a time.
    """

    num_samples: Positive
    num_slots: Positive
    prompt_tokens: Positive
    completion_tokens: Positive
    seconds: Measured
    """Median of the repetitions."""
    spread: Amount
    """Largest less smallest repetition, over the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """Seconds of one training step over `num_groups` groups of `group_size` samples, the optimizer included."""

    num_groups: Positive
    group_size: Positive
    prompt_tokens: Positive
    completion_tokens: Positive
    seconds: Measured
    """Median of the repetitions."""
    spread: Amount
    """Largest less smallest repetition, over the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures:
    """What a process needs beside the model's passes. 0 for what was not measured."""

    __pydantic_config__ = loading.STRICT

    engine_start_s: Amount = 0.0
    """Seconds from the start of the engine's process until it can take requests."""
    engine_memory_bytes: Count = 0
    """Most memory of the engine's process: of the device if it has one, else of the host."""
    trainer_start_s: Amount = 0.0
    """Seconds from the start of the trainer's process until it can train."""
    trainer_memory_bytes: Count = 0
    """Most memory of the trainer's process: of the device if it has one, else of the host."""
    sample_s: Amount = 0.0
    """Seconds of the worker's process for each sample beside the engine: reward, frame, lease."""
    step_s: Amount = 0.0
    """Seconds of a training step in which the trainer does not train: digests, audit, snapshot of the weights."""
    publish_s: Amount = 0.0
    """Seconds to encode the change of a version at the trainer."""
    delta_bytes_per_param: Amount = 0.0
    """Bytes of that change over the model's parameters. It depends on the learning rate."""
    engine_cores: Amount = 0.0
    """Cores that the engine's processes keep busy while it generates, on average."""
    load_s: Amount = 0.0
    """Seconds to decode the change of a version at a worker, write it into the engine and prove it."""
    held_s: Amount = 0.0
    """Seconds from a training step until a worker beside the trainer holds the new version, as runs measured it."""
    all_reduce_bytes_per_s: Annotated[float, Field(ge=0, le=1e13, allow_inf_nan=False)] = 0.0
    """Rate of an all-reduce of the model's gradients between two processes: their bytes over its seconds."""
    all_reduce_s: Amount = 0.0
    """Seconds of an all-reduce of a few bytes between two processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured on one machine for one model and one engine."""

    __pydantic_config__ = loading.STRICT

    model: Text
    """Key of the model (`model_key`)."""
    engine: Text
    machine: Text
    """Name of the machine."""
    device: Text
    """Model of the accelerator as its driver says; empty for cores."""
    measured_at_s: Annotated[float, Field(ge=0, le=1e11)]
    """Unix time of the newest row."""
    versions: dict[Text, Text]
    """Versions of the software by name."""
    num_threads: Positive = 1
    """Compute threads of an engine."""
    num_rows: Count = 0
    """Rows that are to be measured, as far as they are known: those of training once generation is measured."""
    is_complete: bool = False
    """Whether all was measured."""
    generation: tuple[GenerationRow, ...] = ()
    training: tuple[TrainingRow, ...] = ()
    host: HostFigures = HostFigures()
    problem: Annotated[str, Field(max_length=2000)] = ""
    """Why measuring ended before its end; empty if it did not."""

    def to_json(self) -> str:
        """Return the profile as JSON on one line."""
        return json.dumps({"schema": SCHEMA, **loading.tree_of(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, source: str = "the profile") -> "Profile":
        """Return the profile of a text that `to_json` made. Raises: ConfigError if it is not one."""
        tree: Any = loading.parse_json(text, source)
        return loading.validate(cls, loading.check_schema(tree, SCHEMA, source), source)


def model_key(path: str, config_json: str, lora_rank: int = 0) -> str:
    """Return the key of a model's shape: the path of a built-in model, else a digest of its `config.json`.

    Names of folders and of the version of `transformers` that wrote the file are no part of it. Adapters are: they
    change what a step takes.
    """
    key = path
    if config_json:
        tree = json.loads(config_json)
        shape = {name: tree[name] for name in tree if not name.startswith("_") and name != "transformers_version"}
        key = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
    return f"{key}-lora{lora_rank}" if lora_rank else key
