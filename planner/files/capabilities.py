"""Capabilities: what the runtime can execute today, read from `capabilities.json` (`periplus.capabilities/1`).

The planner plans for jobs within these capabilities only. The file is `periplus/schemas/capabilities.json`.
A change that extends the runtime also edits the file. tests/trainer/test_capabilities.py executes what the file lists.
In the file, a `max_staleness` of 0 means synchronous training, a degree of parallelism of 1 means none, and a role that
is not listed cannot be executed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from periplus import schemas
from periplus.config import loading
from periplus.config.loading import Config
from periplus.values.machine import DeviceFamily
from planner.problem.architecture import Architecture
from planner.problem.goal import Limits
from planner.problem.workload import Task

SCHEMA = "periplus.capabilities/1"
"""Name and version of the file's format."""


_TASKS = {
    "generation": Task.GENERATION,
    "reward": Task.REWARD,
    "reference_inference": Task.REFERENCE,
    "critic_inference": Task.CRITIC_INFERENCE,
    "actor_training": Task.ACTOR_TRAINING,
    "critic_training": Task.CRITIC_TRAINING,
}
"""Task of each role of the file. A reward that is a rule is computed by the rollout workers and is not a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the runtime can execute. A plan for a job uses nothing else."""

    algorithms: frozenset[str]
    max_staleness: int
    engines: frozenset[str]
    """Names of the inference engines."""
    degrees: Mapping[str, frozenset[int]]
    """Degrees of tensor parallelism of each engine, on any kind of device."""
    limits: Limits
    """The same capabilities as limits on placements, but for the degrees of engines."""

    def limits_of(self, engine: str | None, model: Architecture) -> Limits:
        """Return the limits for a model's placements, with the degrees by which an engine can divide it."""
        known = frozenset({1}) if engine is None or model.is_fused else self.degrees.get(engine, frozenset())
        divides = (
            n for n in known if model.num_heads % n == 0 and (model.num_kv_heads % n) * (n % model.num_kv_heads) == 0
        )
        return replace(self.limits, engine_tensors=frozenset(divides))


class Parallelism(Config):
    """Largest degree of each kind of parallelism within one task; 1 means none."""

    tensor: int
    pipeline: int
    data: int


class EngineCapability(Config):
    """An inference engine and the devices on which it runs."""

    name: str
    tensor: dict[str, tuple[int, ...]]
    """Degrees of tensor parallelism by kind of device: `cpu`, `cuda`, `emulated`."""


class CapabilitiesFile(Config):
    """Keys of `capabilities.json`. `Capabilities` has the part that the planner uses."""

    algorithms: tuple[str, ...]
    roles: dict[str, Literal["rollout_worker", "trainer"]]
    max_trainers: int
    parallelism: Parallelism
    max_staleness: int
    turns_on: tuple[DeviceFamily, ...]
    """Kinds of devices on which rollout workers may use the trainer's devices by turns with it."""
    topologies: tuple[str, ...]
    engines: tuple[EngineCapability, ...]
    weight_codecs: tuple[str, ...]


def load_capabilities() -> Capabilities:
    """Return what this installation can execute. Raises: ConfigError if the installation is damaged."""
    file = read_file(_path())
    return Capabilities(
        algorithms=frozenset(file.algorithms),
        max_staleness=file.max_staleness,
        engines=frozenset(engine.name for engine in file.engines),
        degrees={each.name: frozenset(n for some in each.tensor.values() for n in some) for each in file.engines},
        limits=Limits(
            max_tensor=file.parallelism.tensor,
            max_pipeline=file.parallelism.pipeline,
            max_data=file.parallelism.data,
            # The file has no keys for these two: a trainer is one process, and of its devices' other users only
            # generation is known.
            max_train_blocks=1,
            colocates=False,
            turns_on=frozenset(file.turns_on),
            max_eta=file.max_staleness,
            roles_on_trainer=frozenset(_TASKS[role] for role, on in file.roles.items() if on == "trainer"),
        ),
    )


def read_file(path: Path) -> CapabilitiesFile:
    """Return the content of the file at `path`. Raises: ConfigError if it cannot be read or a key is wrong."""
    return loading.validate(
        CapabilitiesFile, loading.check_schema(loading.read_yaml(path), SCHEMA, str(path)), str(path)
    )


def _path() -> Path:
    return Path(schemas.__path__[0]) / "capabilities.json"
