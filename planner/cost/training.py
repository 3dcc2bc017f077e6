"""Training: seconds of one step of a mesh, which is one pool or several whose pipelines share every update's samples.

An update takes `samples_per_step / minibatches_per_step` samples. Each pool gets a part in proportion to its speed. A
pipeline of p stages with m >= 1 micro-batches takes m + p - 1 slots of its slowest stage (1F1B; m need not be whole: a
last micro-batch may be small; of single samples each counts with its own length). Then gradients are reduced over all
pipelines in one ring, as fast as the slowest link between two neighbours, and the optimizer updates what a device
holds. With `Sharding.FULL` parameters are gathered twice and gradients scattered once a micro-batch, overlapped with
computing: the longer of both counts. Nothing else overlaps.

Everything is arrays over rows of `Cuts`, or, for meshes of several pools, arrays that broadcast against each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from planner.answer.placement import Layout
from planner.classes import DeviceClass
from planner.cost.cuts import FULL, UNSHARDED, Cuts, FloatArray, IntArray, of_layout
from planner.cost.memory import stage_params, trained_fraction, whole_params
from planner.device import collective, layer
from planner.question.workload import Task, Workload

_HALF = 2
_NUM_LENGTHS = 16
"""Of samples, at most, where their lengths count one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What a pool brings to one task's mesh; a mesh's time is monotone in each of these."""

    stage_s: FloatArray
    """Of one micro-batch in the slowest stage, forward and backward."""
    samples_per_s: FloatArray
    """Of all pipelines, without bubbles."""
    bubble_s: FloatArray
    payload_bytes: FloatArray
    """Gradients on one device, reduced each update; 0 with `Sharding.FULL`."""
    update_s: FloatArray
    data: FloatArray
    """Pipelines: members of the ring."""
    flows: FloatArray
    """Rings that run at once: one for each device of a pipeline."""
    ring_bytes_per_s: FloatArray
    """Between neighbours inside the pool, of one device."""
    ring_latency_s: FloatArray

    def shaped(self, *shape: int) -> "Blocks":
        return Blocks(**{each.name: getattr(self, each.name).reshape(shape) for each in fields(self)})

    def take(self, rows: IntArray) -> "Blocks":
        return Blocks(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What joins two pools of a mesh."""

    bytes_per_s: float
    latency_s: float
    is_shared: bool
    """Whether all flows share the rate (a link between regions), or each has it (a fabric)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTime:
    """Seconds a step, by term."""

    compute_s: float
    """Pipelines without bubbles."""
    bubble_s: float
    reduce_s: float
    update_s: float

    @property
    def total_s(self) -> float:
        return self.compute_s + self.bubble_s + self.reduce_s + self.update_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTimes:
    """The same of many meshes."""

    compute_s: FloatArray
    bubble_s: FloatArray
    reduce_s: FloatArray
    update_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        return self.compute_s + self.bubble_s + self.reduce_s + self.update_s

    def at(self, row: int) -> MeshTime:
        return MeshTime(
            compute_s=float(self.compute_s[row]), bubble_s=float(self.bubble_s[row]),
            reduce_s=float(self.reduce_s[row]), update_s=float(self.update_s[row]),
        )  # fmt: skip


def blocks(workload: Workload, task: Task, at: DeviceClass, cuts: Cuts) -> Blocks:
    """Of pools of one class."""
    arch = workload.models[task]
    rate, latency_s = _local_ring(at, cuts)
    params = stage_params(arch, task, tensor=cuts.tensor, pipeline=cuts.pipeline)
    trained = params * trained_fraction(workload, arch)
    gather_s = _gather_s(params, cuts, rate, latency_s)
    stage_s: FloatArray = np.maximum(_compute_s(workload, task, at, cuts), gather_s[:, None]).mean(axis=1)
    held = np.where(cuts.sharding == UNSHARDED, 1, cuts.data)
    updated = layer.update_s(at.gpu, params=1.0, bytes_per_param=workload.train_state_bytes_per_param)
    return Blocks(
        stage_s=stage_s, samples_per_s=cuts.data * cuts.micro_batch / stage_s,
        bubble_s=(cuts.pipeline.astype(np.float64) - 1) * stage_s,
        payload_bytes=np.where(cuts.sharding == FULL, 0.0, _HALF * trained), update_s=updated * trained / held,
        data=cuts.data.astype(float), flows=(cuts.tensor * cuts.pipeline).astype(float), ring_bytes_per_s=rate,
        ring_latency_s=latency_s,
    )  # fmt: skip


def mesh_times(workload: Workload, pools: Sequence[Blocks], edges: Sequence[Edge]) -> MeshTimes:
    """`edges`: between neighbours of the ring of pools; none for one pool."""
    samples = workload.samples_per_step / workload.minibatches_per_step
    together = samples / _total([each.samples_per_s for each in pools])
    slots = [np.maximum(each.stage_s, together) for each in pools]
    compute = _most(slots)
    whole = _most([slot + each.bubble_s for slot, each in zip(slots, pools, strict=True)])
    payload, members = _most([each.payload_bytes for each in pools]), _total([each.data for each in pools])
    flows = _most([each.flows for each in pools])
    rate, latency_s = -_most([-each.ring_bytes_per_s for each in pools]), _most([each.ring_latency_s for each in pools])
    for edge in edges:
        rate = np.minimum(rate, edge.bytes_per_s / (flows if edge.is_shared else 1.0))
        latency_s = np.maximum(latency_s, edge.latency_s)
    reduce = np.where(payload > 0, 2 * (members - 1) * (payload / members / rate + latency_s), 0.0)
    times = workload.epochs_per_step * workload.minibatches_per_step
    return MeshTimes(
        compute_s=times * compute, bubble_s=times * (whole - compute), reduce_s=times * reduce,
        update_s=times * _most([each.update_s for each in pools]),
    )  # fmt: skip


def crossing_bytes(workload: Workload, task: Task) -> float:
    """Gradients that a step of a mesh sends over each cut of its ring, at most: with two pipelines half as many."""
    arch = workload.models[task]
    once = 2 * _HALF * whole_params(arch, task) * trained_fraction(workload, arch)
    return workload.epochs_per_step * workload.minibatches_per_step * once


def _compute_s(workload: Workload, task: Task, at: DeviceClass, cuts: Cuts) -> FloatArray:
    """[rows, micro-batches]: each in the slowest stage, its collectives and its hop to the next, forward and back."""
    gpu, arch, tensor = at.gpu, workload.models[task], cuts.tensor
    sizes, row = np.unique(cuts.micro_batch, return_inverse=True)
    tokens, long = _micro_batches(workload, sizes)
    forward = layer.forward_s(gpu, arch, tensor=tensor, tokens=tokens, sequence=long)
    backward = layer.backward_s(gpu, arch, tensor=tensor, tokens=tokens, sequence=long)
    if workload.lora_rank:
        backward = backward - layer.dense_s(gpu, arch, tensor=tensor, tokens=tokens)  # gradients of the inputs only
    payload = _HALF * tokens * arch.hidden_size
    both = 2 * collective.machine_all_reduce_s(gpu, payload_bytes=payload, num=tensor)
    head = np.zeros_like(tokens)
    if task is Task.ACTOR_TRAINING:
        head = (2 if workload.lora_rank else 3) * layer.head_s(gpu, arch, tensor=tensor, tokens=tokens)
    pipeline = cuts.pipeline[:, None]
    most, least = -(-arch.num_layers // pipeline), arch.num_layers // pipeline
    a_layer = np.where(cuts.recompute, 2, 1)[:, None] * (forward + both)[row] + (backward + both)[row]
    stage = np.maximum(most * a_layer, least * a_layer + head[row])  # the last stage has the head and fewer layers
    is_near = at.gpus_per_machine % (tensor * pipeline) == 0
    rate = np.where(is_near, collective.machine_rate(gpu, 2), at.fabric_bytes_per_s)
    latency_s = np.where(is_near, gpu.efficiency.collective_latency_s, at.region.fabric_latency_s)
    hop: FloatArray = np.where(pipeline > 1, 2 * (payload[row] / tensor / rate + latency_s), 0.0)
    seconds: FloatArray = stage + hop
    return seconds


def _micro_batches(workload: Workload, sizes: IntArray) -> tuple[FloatArray, FloatArray]:
    """[sizes, micro-batches]: tokens, and those around one of them. Several samples together are near their mean; one
    is as long as it is, and short ones take more than their part, since weights are read for each."""
    prompts, completions = (np.asarray(each.quantiles) for each in (workload.prompt_tokens, workload.completion_tokens))
    num = next(num for num in range(min(_NUM_LENGTHS, len(completions)), 0, -1) if len(completions) % num == 0)
    one = float(prompts.mean()) + completions.reshape(num, -1).mean(axis=1)
    own = one + float(prompts.var()) / workload.tokens_per_sample
    is_one = (sizes == 1)[:, None]
    tokens = np.where(is_one, one, sizes[:, None] * workload.tokens_per_sample)
    return tokens, np.where(is_one, own, workload.tokens_around_a_token)


def _gather_s(params: FloatArray, cuts: Cuts, rate: FloatArray, latency_s: FloatArray) -> FloatArray:
    """Of fully sharded parameters, a micro-batch; a ring's gather (`planner.device.collective`) three times."""
    once = (cuts.data - 1) * (_HALF * params / cuts.data / rate + latency_s)
    gathered: FloatArray = np.where((cuts.sharding == FULL) & (cuts.data > 1), 3 * once, 0.0)
    return gathered


def _local_ring(at: DeviceClass, cuts: Cuts) -> tuple[FloatArray, FloatArray]:
    """(bytes a second, latency) between pipelines: inside a machine if all are in one, else over the fabric."""
    devices = cuts.num_units * cuts.tensor
    sharing = (2 / np.maximum(devices, 2)) ** at.gpu.efficiency.link_sharing
    is_inside = devices <= at.gpus_per_machine
    rate = np.where(is_inside, collective.machine_rate(at.gpu, 2) * sharing, at.fabric_bytes_per_s)
    latency_s = np.where(is_inside, at.gpu.efficiency.collective_latency_s, at.region.fabric_latency_s)
    return rate, latency_s


def _most(arrays: Sequence[FloatArray]) -> FloatArray:
    found = arrays[0]
    for each in arrays[1:]:
        found = np.maximum(found, each)
    return found


def _total(arrays: Sequence[FloatArray]) -> FloatArray:
    found = arrays[0]
    for each in arrays[1:]:
        found = found + each
    return found


def joined(parts: Sequence[Blocks]) -> Blocks:
    """One after the other."""
    names = [each.name for each in fields(Blocks)]
    return Blocks(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def stage_s(workload: Workload, task: Task, at: DeviceClass, layout: Layout, data: int) -> float:
    """Of one layout: `Blocks.stage_s`."""
    return float(blocks(workload, task, at, of_layout(layout, data * layout.pipeline)).stage_s[0])
