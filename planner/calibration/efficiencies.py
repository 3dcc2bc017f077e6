"""Efficiencies of a device type for one model, fitted to a profile.

Every row of a profile is predicted with the functions of the cost model, so that a plan of the same work predicts what
was measured. Generation and training are programs of their own, and are fitted apart. Each fitted parameter has a prior
at the type's present value; its spread is chosen by hand. A processor's packaged rates are a guess, so the fit may
also exceed them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

import numpy as np

from periplus.values.profile import GenerationRow, Profile, TrainingRow
from planner.answer.placement import Layout
from planner.calibration import robust
from planner.calibration.robust import FloatArray
from planner.cost.tasks import training
from planner.cost.tasks.generation import SLOTS, Replica
from planner.cost.tasks.layer_cuts import MICRO_BATCH, of_layout
from planner.problem import lengths
from planner.problem.architecture import Architecture
from planner.problem.device_classes import DeviceClass
from planner.problem.fleet import ONE_HOST_BYTES_PER_S, Region
from planner.problem.hardware import Efficiency, GpuType
from planner.problem.workload import Task, WeightTransfer, Workload

R = TypeVar("R", GenerationRow, TrainingRow)

STRENGTH = 0.004
"""Weight of the priors relative to the mean error of the rows. Chosen by hand."""
WITH_STREAM = 1.4
"""Seconds of a sample in its worker beside the model, over those without its stream to the gateway, which is no part of
a profile. Measured, without the loading of versions: 0.92 ms over 0.64 (bench/results/2026-11-27-end-to-end.md)."""
INTAKE = 0.4
"""Seconds of a sample in its trainer beside the learner, over those in its worker beside the model, without its stream.
Measured there: 0.3 ms."""
WITH_THREADS = 2.5
"""Seconds by which a step of the trainer's process is longer than the learner's, over those that are measured beside
the learner: threads that publish and keep versions take turns with it in Python. Measured there: 2 to 3."""
WITH_PROOF = 2.5
"""Seconds from a training step until a worker beside the trainer holds the new version, over those to encode, decode
and load it: it is also hashed, signed, put on record, compared and kept. Measured there: 2.6 to 4.1, the more the
busier cores are."""
ITERATIONS = 30
"""Most Gauss-Newton steps of a fit. Chosen by hand."""

_GENERATION = {
    "matmul_fraction": 1.5,
    "saturation_tokens": 1.0,
    "memory_fraction": 1.0,
    "layer_overhead_s": 2.0,
    "attention_overhead_s": 1.5,
}
"""Fitted parameters of generation, and the spread of each logarithm around its prior."""
_TRAINING = {"matmul_fraction": 1.5, "saturation_tokens": 1.0, "memory_fraction": 1.0, "layer_overhead_s": 2.0}
"""Fitted parameters of training, and the spread of each logarithm around its prior."""
_LEAST_S = 1e-7
"""Least fixed seconds that a fit starts with: a logarithm cannot begin at 0."""
_UNUSED = WeightTransfer(bytes_per_param=2.0, is_delta=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A device type as one model's work runs on it, with the mean error of its predictions over the profile's rows.

    An error is |log(predicted / measured)|, which is the relative error where it is small.
    """

    gpu: GpuType
    before: float
    after: float


def calibrated(gpu: GpuType, arch: Architecture, profile: Profile, *, lora_rank: int = 0) -> Calibration:
    """Return the type with the efficiencies that fit a profile of the model `arch` on one such device.

    A kind of work without rows keeps its efficiency.
    """
    generation, before_generation, after_generation = _fitted(
        gpu, _GENERATION, profile.generation, lambda made, row: generation_s(made, arch, row)
    )
    scored = gpu.for_training
    trained, before_training, after_training = _fitted(
        scored, _TRAINING, profile.training, lambda made, row: training_s(made, arch, row, lora_rank)
    )
    host = profile.host
    # What a process does beside the passes was not part of the rows.
    own = replace(
        generation.efficiency,
        sample_overhead_s=WITH_STREAM * host.sample_s,
        version_overhead_s=host.held_s or WITH_PROOF * (host.publish_s + host.load_s),
        busy_cores=host.engine_cores or 1.0,
    )
    steps = replace(
        trained.efficiency,
        # Runs were measured with all threads.
        step_overhead_s=host.step_s * (1.0 if host.held_s else WITH_THREADS),
        sample_overhead_s=INTAKE * host.sample_s,
        busy_cores=1.0,
    )
    peak = max(generation.matmul_flop_per_s, trained.matmul_flop_per_s)
    rate = max(generation.memory_bytes_per_s, trained.memory_bytes_per_s)
    own, steps = _rescaled(own, generation, peak, rate), _rescaled(steps, trained, peak, rate)
    link = gpu.link_bytes_per_s
    if host.all_reduce_bytes_per_s:
        # A ring of two sends and receives all bytes once.
        link = host.all_reduce_bytes_per_s
        steps = replace(steps, link_fraction=1.0, collective_latency_s=host.all_reduce_s / 2)
    errors = [*before_generation, *before_training], [*after_generation, *after_training]
    before, after = (float(np.mean(each)) if each else 0.0 for each in errors)
    made = replace(
        gpu,
        matmul_flop_per_s=peak,
        memory_bytes_per_s=rate,
        link_bytes_per_s=link,
        efficiency=own,
        training=steps,
        source=source_of(profile, after),
    )
    return Calibration(gpu=made, before=before, after=after)


def source_of(profile: Profile, error: float) -> str:
    """Return a sentence on what was measured, where, when and with what, and how well the fit meets it."""
    at = datetime.fromtimestamp(profile.measured_at_s, UTC)
    versions = ", ".join(f"{name} {version}" for name, version in sorted(profile.versions.items()))
    num = len(profile.generation) + len(profile.training)
    facts = (f"{num} row{'s' if num != 1 else ''} on {profile.machine}", f"{at:%Y-%m-%d %H:%M} UTC", versions)
    return f"{', '.join(filter(None, facts))}; error of the fit {error:.0%}"[:500]


def _fitted(
    gpu: GpuType, spreads: dict[str, float], rows: Sequence[R], predicted_s: Callable[[GpuType, R], float]
) -> tuple[GpuType, list[float], list[float]]:
    """Return the type with fitted efficiencies, and the errors of all rows before and after.

    The matmul and memory fractions of the result may be above 1: then so are rates of a processor's packaged type.
    """
    if not rows:
        return gpu, [], []
    names = list(spreads)
    centre = np.log([max(getattr(gpu.efficiency, name), _LEAST_S) for name in names])

    def made(x: FloatArray) -> GpuType:
        return _with(gpu, dict(zip(names, np.exp(x).tolist(), strict=True)))

    def residuals(x: FloatArray) -> FloatArray:
        device = made(x)
        return np.array([np.log(predicted_s(device, row) / row.seconds) for row in rows])

    x = robust.minimise(
        residuals,
        centre,
        centre=centre,
        spread=np.array([spreads[name] for name in names]),
        weights=np.full(len(rows), 1 / len(rows)),
        strength=STRENGTH,
        iterations=ITERATIONS,
    )
    return made(x), np.abs(residuals(centre)).tolist(), np.abs(residuals(x)).tolist()


def _with(gpu: GpuType, values: dict[str, float]) -> GpuType:
    """Return the type with these efficiencies. Rates rise where a fraction would be above 1."""
    matmul, memory = values["matmul_fraction"], values["memory_fraction"]
    fit = replace(
        gpu.efficiency, **(values | {"matmul_fraction": min(1.0, matmul), "memory_fraction": min(1.0, memory)})
    )
    return replace(
        gpu,
        matmul_flop_per_s=gpu.matmul_flop_per_s * max(1.0, matmul),
        memory_bytes_per_s=gpu.memory_bytes_per_s * max(1.0, memory),
        efficiency=fit,
    )


def _rescaled(fit: Efficiency, gpu: GpuType, peak: float, rate: float) -> Efficiency:
    """Return the efficiency relative to higher rates than those of the type that it was fitted for."""
    by, memory_by = gpu.matmul_flop_per_s / peak, gpu.memory_bytes_per_s / rate
    return replace(
        fit,
        matmul_fraction=fit.matmul_fraction * by,
        attention_fraction=fit.attention_fraction * by,
        memory_fraction=fit.memory_fraction * memory_by,
    )


def generation_s(gpu: GpuType, arch: Architecture, row: GenerationRow) -> float:
    workload = _workload(arch, row.prompt_tokens, row.completion_tokens, 1, 1)
    place = int(np.searchsorted(SLOTS, min(row.num_slots, SLOTS[-1]), side="right")) - 1
    return Replica(workload, gpu, 1).phase_s(float(row.num_samples), place)


def training_s(gpu: GpuType, arch: Architecture, row: TrainingRow, lora_rank: int) -> float:
    """Return the seconds of a step with the micro-batch that is fastest, as a plan chooses it."""
    workload = _workload(
        arch, row.prompt_tokens, row.completion_tokens, row.num_groups, row.group_size, lora_rank=lora_rank
    )
    at, task = _alone(gpu), Task.ACTOR_TRAINING
    times = [
        training.mesh_times(
            workload,
            [training.pool_training_terms(workload, task, at, of_layout(Layout(tensor=1, micro_batch=size), 1))],
            [],
        )
        for size in MICRO_BATCH
    ]
    return min(each.at(0).total_s for each in times)


def _workload(
    arch: Architecture, prompt: int, completion: int, num_groups: int, group_size: int, lora_rank: int = 0
) -> Workload:
    return Workload(
        algorithm="grpo",
        models={Task.GENERATION: arch, Task.ACTOR_TRAINING: arch},
        eta=1,
        prompts_per_step=num_groups,
        group_size=group_size,
        prompt_tokens=lengths.constant(prompt),
        completion_tokens=lengths.constant(completion),
        epochs_per_step=1,
        minibatches_per_step=1,
        weights=_UNUSED,
        lora_rank=lora_rank,
    )


def _alone(gpu: GpuType) -> DeviceClass:
    region = Region(name="here", machines=(), fabric_bytes_per_s=ONE_HOST_BYTES_PER_S)
    return DeviceClass(
        key="here",
        region=region,
        gpu=gpu,
        gpus_per_machine=1,
        num_machines=1,
        usd_per_gpu_hour=None,
        is_spot=False,
        fabric="",
        fabric_bytes_per_s=ONE_HOST_BYTES_PER_S,
    )
