"""Workload files (`periplus.workload/1`, YAML or JSON): conversion between parsed files and `Workload` values.

A workload describes a job for planning and studies, without the keys that only execution needs. It names the algorithm,
the model of each role, the staleness bound, the samples of a step, the lengths of prompts and completions, and the
bytes per parameter of the training state and of a published version. The algorithm decides the roles: PPO has a critic,
and a reward and a reference model unless the file says otherwise. Other algorithms have a reward or a reference model
only if the file says so.

`planner.files.workload_entries` checks single keys; this module checks rules that involve several. It opens no file:
files that a workload refers to are read through `Sources`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from periplus.config import loading
from periplus.errors import ConfigError
from planner.devices.catalogue import architecture
from planner.files.huggingface import architecture_of_config, checked_shape
from planner.files.workload_entries import ArchitectureEntry, CsvEntry, LengthsEntry, Role, WeightsEntry, WorkloadFile
from planner.problem import lengths
from planner.problem.architecture import Architecture
from planner.problem.ranges import MAX_SAMPLES_PER_STEP, MAX_TOKENS
from planner.problem.workload import Lengths, Task, WeightTransfer, Workload

SCHEMA = "periplus.workload/1"
"""Name and version of the file's format."""

TRAIN_STATE_BYTES: Mapping[str, float] = {"adamw": 16.0, "adamw8bit": 10.0, "sgd": 8.0}
"""Bytes of resident training state per trained parameter, by optimizer. Each has a bf16 weight and gradient (4 bytes)
and a float32 master weight (4 bytes). AdamW adds two float32 moments, 8-bit AdamW two moments of one byte, SGD none."""
CRITIC_ALGORITHMS = frozenset({"ppo"})
"""Algorithms that train a critic."""
FULL_COPY_BYTES = 2.0
"""Bytes per parameter of a full bf16 copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Functions that read the files that a workload refers to. Both raise ConfigError."""

    config_json: Callable[[str], object]
    """Return the parsed `config.json` at a path."""
    rows: Callable[[str], Sequence[Mapping[str, str]]]
    """Return the rows of the CSV file at a path; each maps column names to texts."""


def workload_of(tree: object, source: str, sources: Sources) -> Workload:
    """Return the workload of a parsed file. Raises: ConfigError, which names `source`."""
    file = loading.validate(WorkloadFile, loading.check_schema(tree, SCHEMA, source), source)
    loading.refuse(source, _disagreements(file))
    try:
        return _workload(file, sources)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def to_tree(workload: Workload) -> dict[str, Any]:
    """Return a workload as plain values that `workload_of` reads as the same workload.

    The workload's tasks must be tasks that its algorithm can have. Raises: ValueError if two models have one name.
    """
    actor = workload.models[Task.ACTOR_TRAINING]
    roles = {"reward": Task.REWARD, "reference": Task.REFERENCE, "critic": Task.CRITIC_TRAINING}
    used = {role: workload.models[task] for role, task in roles.items() if task in workload.models}
    # Equal shapes appear once. The file refers to shapes by name, so two shapes of one name could not be told apart.
    shapes = {shape: asdict(shape) for shape in (actor, *used.values())}
    if len({shape.name for shape in shapes}) < len(shapes):
        raise ValueError("two different models of this workload have the same name; rename one of them")
    # Every key is written, also where it equals its default, since some defaults depend on the algorithm.
    return {
        "schema": SCHEMA,
        "algorithm": workload.algorithm,
        "architectures": [{"name": shape.pop("name"), "shape": shape} for shape in shapes.values()],
        "model": actor.name,
        "models": {role: shape.name for role, shape in used.items()},
        "eta": workload.eta,
        "prompts_per_step": workload.prompts_per_step,
        "group_size": workload.group_size,
        "prompt_tokens": {"quantiles": list(workload.prompt_tokens.quantiles)},
        "completion_tokens": {"quantiles": list(workload.completion_tokens.quantiles)},
        "epochs_per_step": workload.epochs_per_step,
        "minibatches_per_step": workload.minibatches_per_step,
        "reward": "model" if "reward" in used else "rule",
        "reference": "reference" in used,
        "train_state_bytes_per_param": workload.train_state_bytes_per_param,
        "gradient_bytes_per_param": workload.gradient_bytes_per_param,
        "lora_rank": workload.lora_rank,
        "weights": {
            "kind": "delta" if workload.weights.is_delta else "dense",
            "bytes_per_param": workload.weights.bytes_per_param,
        },
        "trajectory_bytes_per_token": workload.trajectory_bytes_per_token,
    }


def workload_schema() -> dict[str, Any]:
    """Return the JSON schema of workload files, for editors and for `periplus/schemas/workload.schema.json`."""
    schema = WorkloadFile.model_json_schema()
    schema["properties"] = {"schema": {"const": SCHEMA}, **schema["properties"]}
    schema["required"] = ["schema", *schema["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": SCHEMA, **schema}


def _disagreements(file: WorkloadFile) -> Iterator[str]:
    for key in ("prompt_tokens", "completion_tokens"):
        # A distribution has several forms, of which exactly one is given.
        given = [name for name, value in getattr(file, key) if value is not None]
        if len(given) != 1:
            has = " and ".join(given) or "nothing"
            yield f"{key} has {has}; give exactly one of {', '.join(LengthsEntry.model_fields)}"
        quantiles = getattr(file, key).quantiles or ()
        if list(quantiles) != sorted(quantiles):
            yield f"{key}.quantiles must ascend"
        if quantiles and max(quantiles) < 1:
            yield f"{key}.quantiles are all below one token; the last must be 1 or more"
    for entry in file.architectures:
        if sum(value is not None for value in (entry.shape, entry.config, entry.config_path)) != 1:
            yield f"the architecture {entry.name} needs exactly one of shape, config and config_path"
    names = [entry.name for entry in file.architectures]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"the architecture {name} is there {names.count(name)} times; give each name once"
    num_samples = file.prompts_per_step * file.group_size
    if num_samples > MAX_SAMPLES_PER_STEP:
        yield (
            f"prompts_per_step {file.prompts_per_step:,} times group_size {file.group_size:,} are {num_samples:,} "
            f"samples a step, but there may be {MAX_SAMPLES_PER_STEP:,}"
        )
    if file.minibatches_per_step > num_samples:
        yield f"minibatches_per_step is {file.minibatches_per_step:,}, but a step has only {num_samples:,} samples"
    yield from _weights_refusals(file.weights)
    for role in file.models:
        if not _has(file, role):
            yield f"models.{role} is set, but there is no such role: {_WHY_NOT[role]}"


_WHY_NOT: Mapping[Role, str] = {
    "reward": "set reward: model",
    "reference": "set reference: true",
    "critic": "only ppo has a critic",
}
"""What to change so that a workload has a role, for the error about a model of a role that does not exist."""


def _weights_refusals(weights: WeightsEntry) -> Iterator[str]:
    counted = (weights.density, weights.bits_per_change)
    if weights.kind == "dense" and any(value is not None for value in counted):
        yield "weights.density and weights.bits_per_change are of deltas; set weights.kind: delta, or leave them out"
    if weights.kind == "delta":
        both = all(value is not None for value in counted)
        neither = all(value is None for value in counted)
        if not (both and weights.bytes_per_param is None) and not (neither and weights.bytes_per_param is not None):
            yield "weights of kind delta need density and bits_per_change, or bytes_per_param in place of both"


def _has(file: WorkloadFile, role: Role) -> bool:
    critic = file.algorithm in CRITIC_ALGORITHMS
    match role:
        case "reward":
            return file.reward == "model" or (file.reward is None and critic)
        case "reference":
            return critic if file.reference is None else file.reference
        # The critic follows from the algorithm; no key switches it on or off.
        case _:
            return critic


def _workload(file: WorkloadFile, sources: Sources) -> Workload:
    defined = {entry.name: _architecture(entry, sources) for entry in file.architectures}
    actor = _named(file.model, defined)
    # A role without a model of its own has the actor's shape.
    of = {role: _named(file.models.get(role, file.model), defined) for role in _WHY_NOT if _has(file, role)}
    _check_lora(file.lora_rank, (actor, *(shape for role, shape in of.items() if role == "critic")))
    models = {Task.GENERATION: actor, Task.ACTOR_TRAINING: actor}
    models |= {task: of[role] for role, tasks in _TASKS_OF_ROLE.items() if role in of for task in tasks}
    state = file.train_state_bytes_per_param or TRAIN_STATE_BYTES[file.optimizer]
    return Workload(
        algorithm=file.algorithm,
        # In the order of `Task`, whatever the file's order.
        models={task: models[task] for task in Task if task in models},
        eta=file.eta,
        prompts_per_step=file.prompts_per_step,
        group_size=file.group_size,
        prompt_tokens=_lengths(file.prompt_tokens, sources),
        completion_tokens=_lengths(file.completion_tokens, sources),
        epochs_per_step=file.epochs_per_step,
        minibatches_per_step=file.minibatches_per_step,
        train_state_bytes_per_param=state,
        gradient_bytes_per_param=file.gradient_bytes_per_param,
        lora_rank=file.lora_rank,
        weights=_transfer(file.weights),
        trajectory_bytes_per_token=file.trajectory_bytes_per_token,
    )


_TASKS_OF_ROLE: Mapping[Role, tuple[Task, ...]] = {
    "reward": (Task.REWARD,),
    "reference": (Task.REFERENCE,),
    "critic": (Task.CRITIC_INFERENCE, Task.CRITIC_TRAINING),
}
"""Tasks that use the model of a role."""


def _transfer(entry: WeightsEntry) -> WeightTransfer:
    if entry.bytes_per_param is not None:
        return WeightTransfer(bytes_per_param=entry.bytes_per_param, is_delta=entry.kind == "delta")
    if entry.density is None or entry.bits_per_change is None:
        return WeightTransfer(bytes_per_param=FULL_COPY_BYTES, is_delta=False)
    return WeightTransfer(bytes_per_param=entry.density * entry.bits_per_change / 8, is_delta=True)


def _named(name: str, defined: Mapping[str, Architecture]) -> Architecture:
    return defined[name] if name in defined else architecture(name)


def _architecture(entry: ArchitectureEntry, sources: Sources) -> Architecture:
    if entry.shape is not None:
        return checked_shape(Architecture(name=entry.name, **asdict(entry.shape)))
    tree = sources.config_json(entry.config_path) if entry.config_path is not None else entry.config
    return architecture_of_config(tree, entry.name)


def _check_lora(rank: int, trained: Sequence[Architecture]) -> None:
    for shape in trained:
        if rank > shape.hidden_size:
            raise ConfigError(
                f"lora_rank is {rank:,}, but {shape.name} is only {shape.hidden_size:,} wide; adapters have a lower "
                "rank than what they adapt"
            )


def _lengths(entry: LengthsEntry, sources: Sources) -> Lengths:
    if entry.constant is not None:
        return lengths.constant(entry.constant)
    if entry.lognormal is not None:
        return lengths.lognormal(**entry.lognormal.model_dump())
    if entry.quantiles is not None:
        return Lengths(quantiles=entry.quantiles)
    assert entry.csv is not None
    return _measured(entry.csv, sources.rows(entry.csv.path))


def _measured(entry: CsvEntry, rows: Sequence[Mapping[str, str]]) -> Lengths:
    header = sorted(rows[0]) if rows else []
    for name in (entry.column, *entry.where):
        if name not in header:
            raise ConfigError(f"{entry.path} has no column {name}; it has {', '.join(header) or 'no rows'}")
    chosen = [row[entry.column] for row in rows if all(row[key] == value for key, value in entry.where.items())]
    if not chosen:
        raise ConfigError(f"{entry.path} has no row with {entry.where}; check the texts under `where`")
    try:
        counts = [float(text) for text in chosen]
    except ValueError as error:
        raise ConfigError(f"{entry.path}, column {entry.column}: {error}; it must hold token counts") from error
    # The comparison is false for nan, which is refused here with infinities.
    if not all(0 <= count <= MAX_TOKENS for count in counts) or max(counts) < 1:
        raise ConfigError(
            f"{entry.path}, column {entry.column}: token counts must be finite, from 0 to {MAX_TOKENS:g}, and not all 0"
        )
    return lengths.of_samples(counts, entry.cap_tokens or math.inf)
