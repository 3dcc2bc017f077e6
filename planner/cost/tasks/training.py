"""Training: seconds per step of a mesh, which is one or two pools whose pipelines share the samples of every update.

One optimizer update processes `samples_per_step / minibatches_per_step` samples, divided among the pools in proportion
to their speed. A pipeline of p stages with m >= 1 micro-batches takes m + p - 1 slots of its slowest stage (1F1B,
Narayanan et al. 2021). m need not be whole, since the last micro-batch may be small. Micro-batches of one sample each
count with that sample's own length.

Then one ring over all pipelines reduces the gradients at the rate of its slowest link (Patarasuk and Yuan 2009), and
the optimizer updates the parameters that a device holds. With full sharding (ZeRO-3, FSDP) a micro-batch gathers the
parameters twice and scatters the gradients once. This overlaps with computing, so the longer of both counts. Nothing
else overlaps. If each machine has a copy (HSDP), this stays inside machines, and the ring that reduces the gradients is
over copies. The rings of all devices of a machine share its link there.

All results are arrays over rows of `Cuts`. For meshes of two pools the arrays of both pools broadcast against each
other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from planner.answer.placement import Layout
from planner.cost.tasks.layer_cuts import FULL, UNSHARDED, Cuts, FloatArray, IntArray, of_layout
from planner.cost.tasks.memory import stage_params, trained_fraction, whole_params
from planner.devices import collective, layer
from planner.problem.architecture import HALF_PRECISION_BYTES
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import Task, Workload

_NUM_LENGTHS = 16
"""Largest number of sample lengths for which a micro-batch of one sample is priced. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTrainingTerms:
    """The numbers of a pool that the time of a mesh depends on, for one task; each array is `[num_rows]`.

    A mesh's time is monotone in each of them, so pools can be compared before they are paired.
    """

    stage_s: FloatArray
    """Seconds of one micro-batch in the slowest stage, forward and backward."""
    samples_per_s: FloatArray
    """Samples per second of all pipelines together, without bubbles."""
    bubble_s: FloatArray
    """Seconds that filling and draining a pipeline adds to each update."""
    payload_bytes: FloatArray
    """Gradient bytes on one device that each update reduces; 0 for one fully sharded copy, which scatters them in each
    micro-batch."""
    update_s: FloatArray
    """Seconds of one optimizer update, with its share of what a step takes beside passes and updates."""
    data: FloatArray
    """The pool's members of the ring: its data-parallel pipelines, or its copies if these are more than one."""
    flows: FloatArray
    """Rings that run at the same time, one for each device of a pipeline."""
    ring_bytes_per_s: FloatArray
    """Bytes per second of one device between neighbours of the ring inside the pool."""
    ring_latency_s: FloatArray
    """Latency of one hop of the ring inside the pool."""

    def shaped(self, *shape: int) -> "PoolTrainingTerms":
        """Return the same numbers with another array shape, for broadcasting against another pool."""
        return PoolTrainingTerms(**{each.name: getattr(self, each.name).reshape(shape) for each in fields(self)})

    def take(self, rows: IntArray) -> "PoolTrainingTerms":
        """Return the selected rows."""
        return PoolTrainingTerms(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConnection:
    """Connection between two neighbouring pools in the gradient ring of a mesh."""

    bytes_per_s: float
    latency_s: float
    is_shared: bool
    """True for a link between regions, whose rate all rings share. False for a fabric, where each ring has the full
    rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTime:
    """Training seconds per step of one task on one mesh, by term."""

    compute_s: float
    """Time in the slowest stage, without bubbles."""
    bubble_s: float
    """Filling and draining of the pipelines."""
    reduce_s: float
    """Reduction of the gradients over all pipelines."""
    update_s: float
    """Optimizer updates."""

    @property
    def total_s(self) -> float:
        return self.compute_s + self.bubble_s + self.reduce_s + self.update_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTimes:
    """Training seconds per step of one task on many meshes, by term as in `MeshTime`; arrays of one shape."""

    compute_s: FloatArray
    bubble_s: FloatArray
    reduce_s: FloatArray
    update_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        return self.compute_s + self.bubble_s + self.reduce_s + self.update_s

    def at(self, row: int) -> MeshTime:
        """Return the times of one mesh."""
        return MeshTime(
            compute_s=float(self.compute_s[row]),
            bubble_s=float(self.bubble_s[row]),
            reduce_s=float(self.reduce_s[row]),
            update_s=float(self.update_s[row]),
        )


def pool_training_terms(workload: Workload, task: Task, at: DeviceClass, cuts: Cuts) -> PoolTrainingTerms:
    """Return the numbers of pools of one class for one task, a row for each of `cuts`."""
    arch = workload.models[task]
    rate, latency_s = _local_ring(at, cuts.num_units * cuts.tensor)
    params = stage_params(arch, task, tensor=cuts.tensor, pipeline=cuts.pipeline)
    trained = params * trained_fraction(workload, arch)
    gather_s = _gather_s(workload, params, cuts, *_local_ring(at, cuts.shards * cuts.pipeline * cuts.tensor))
    # Full sharding overlaps communication with computing: the longer one counts in each micro-batch; then average.
    stage_s: FloatArray = np.maximum(_compute_s(workload, task, at, cuts), gather_s[:, None]).mean(axis=1)
    # Devices over which the optimizer state of one shard of the model is divided.
    held = np.where(cuts.sharding == UNSHARDED, 1, cuts.shards)
    has_copies = cuts.copies > 1
    reduced = np.where(cuts.sharding == FULL, np.where(has_copies, trained / cuts.shards, 0.0), trained)
    gpu, updates = at.training_gpu, workload.epochs_per_step * workload.minibatches_per_step
    beside_s = gpu.efficiency.step_overhead_s + gpu.efficiency.sample_overhead_s * workload.samples_per_step
    updated = layer.update_s(gpu, params=1.0, bytes_per_param=workload.train_state_bytes_per_param)
    return PoolTrainingTerms(
        stage_s=stage_s,
        samples_per_s=cuts.data * cuts.micro_batch / stage_s,
        bubble_s=(cuts.pipeline.astype(np.float64) - 1) * stage_s,
        payload_bytes=workload.gradient_bytes_per_param * reduced,
        update_s=updated * trained / held + beside_s / updates,
        data=np.where(has_copies, cuts.copies, cuts.data).astype(float),
        flows=(cuts.tensor * cuts.pipeline).astype(float),
        # The fabric is measured with one ring, and copies have one for each of their devices.
        ring_bytes_per_s=np.where(has_copies, rate / cuts.shards, rate),
        ring_latency_s=latency_s,
    )


def mesh_times(workload: Workload, pools: Sequence[PoolTrainingTerms], edges: Sequence[PoolConnection]) -> MeshTimes:
    """Return the seconds per step of meshes of these pools.

    `edges` connect neighbouring pools of the ring; a mesh of one pool has none. The arrays of the pools broadcast.
    """
    samples = workload.samples_per_step / workload.minibatches_per_step
    # Seconds of an update without bubbles if work is divided by speed; a pipeline runs at least one whole micro-batch.
    together = samples / _total([each.samples_per_s for each in pools])
    slots = [np.maximum(each.stage_s, together) for each in pools]
    compute = _most(slots)
    whole = _most([slot + each.bubble_s for slot, each in zip(slots, pools, strict=True)])
    # One ring over all pipelines moves 2 (n - 1) / n of the payload at the rate of its slowest link.
    payload, members = _most([each.payload_bytes for each in pools]), _total([each.data for each in pools])
    flows = _most([each.flows for each in pools])
    rate, latency_s = -_most([-each.ring_bytes_per_s for each in pools]), _most([each.ring_latency_s for each in pools])
    for edge in edges:
        rate = np.minimum(rate, edge.bytes_per_s / (flows if edge.is_shared else 1.0))
        latency_s = np.maximum(latency_s, edge.latency_s)
    reduce = np.where(payload > 0, 2 * (members - 1) * (payload / members / rate + latency_s), 0.0)
    times = workload.epochs_per_step * workload.minibatches_per_step
    return MeshTimes(
        compute_s=times * compute,
        bubble_s=times * (whole - compute),
        reduce_s=times * reduce,
        update_s=times * _most([each.update_s for each in pools]),
    )


def crossing_bytes(workload: Workload, task: Task) -> float:
    """Return the most gradient bytes that a mesh sends over one edge of its ring in each step.

    A ring of n pipelines sends 2 (n - 1) / n of the gradients; this is the limit for large n, twice the value at n = 2.
    """
    arch = workload.models[task]
    once = 2 * workload.gradient_bytes_per_param * whole_params(arch, task) * trained_fraction(workload, arch)
    return workload.epochs_per_step * workload.minibatches_per_step * once


def _compute_s(workload: Workload, task: Task, at: DeviceClass, cuts: Cuts) -> FloatArray:
    """Return `[num_rows, num_lengths]`: seconds of one micro-batch in the slowest stage, forward and backward.

    Tensor-parallel collectives and the hop of activations and gradients to the next stage are included.
    """
    gpu, arch, tensor = at.training_gpu, workload.models[task], cuts.tensor
    sizes, row = np.unique(cuts.micro_batch, return_inverse=True)
    tokens, long = _micro_batches(workload, sizes)
    # One layer, forward and backward, for each micro-batch size and sample length: [num_sizes, num_lengths].
    forward = layer.forward_s(gpu, arch, tensor=tensor, tokens=tokens, sequence=long)
    backward = layer.backward_s(gpu, arch, tensor=tensor, tokens=tokens, sequence=long)
    if workload.lora_rank:
        # Frozen weights need no gradients, only the inputs do: half of the backward matrix products.
        backward = backward - layer.dense_s(gpu, arch, tensor=tensor, tokens=tokens)
    payload = HALF_PRECISION_BYTES * tokens * arch.hidden_size
    # Two tensor-parallel all-reduces per layer in each direction.
    both = 2 * collective.machine_all_reduce_s(gpu, payload_bytes=payload, num=tensor)
    head = np.zeros_like(tokens)
    if task is Task.ACTOR_TRAINING:
        head = (2 if workload.lora_rank else 3) * layer.head_s(gpu, arch, tensor=tensor, tokens=tokens)
    pipeline = cuts.pipeline[:, None]
    most, least = -(-arch.num_layers // pipeline), arch.num_layers // pipeline
    a_layer = np.where(cuts.recompute, 2, 1)[:, None] * (forward + both)[row] + (backward + both)[row]
    # The last stage has the head; where layers do not divide evenly it has fewer of them.
    stage = np.maximum(most * a_layer, least * a_layer + head[row])
    # The hop to the next stage stays inside a machine if machines hold whole pipelines.
    is_near = at.gpus_per_machine % (tensor * pipeline) == 0
    rate = np.where(is_near, collective.machine_rate(gpu, 2), at.fabric_bytes_per_s)
    latency_s = np.where(is_near, gpu.efficiency.collective_latency_s, at.region.fabric_latency_s)
    hop: FloatArray = np.where(pipeline > 1, 2 * (payload[row] / tensor / rate + latency_s), 0.0)
    seconds: FloatArray = stage + hop
    return seconds


def _micro_batches(workload: Workload, sizes: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return (tokens of a micro-batch, tokens that one of its tokens attends to), each `[num_sizes, num_lengths]`.

    A micro-batch of several samples has about the mean length of each. One sample has its own length, and short samples
    are less efficient than their share, since each micro-batch reads all weights.
    """
    prompts, completions = (np.asarray(each.quantiles) for each in (workload.prompt_tokens, workload.completion_tokens))
    # The completions' quantiles, averaged in equal groups: at most _NUM_LENGTHS representative lengths.
    num = next(num for num in range(min(_NUM_LENGTHS, len(completions)), 0, -1) if len(completions) % num == 0)
    one = float(prompts.mean()) + completions.reshape(num, -1).mean(axis=1)
    own = one + float(prompts.var()) / workload.tokens_per_sample
    is_one = (sizes == 1)[:, None]
    tokens = np.where(is_one, one, sizes[:, None] * workload.tokens_per_sample)
    return tokens, np.where(is_one, own, workload.tokens_around_a_token)


def _gather_s(
    workload: Workload, params: FloatArray, cuts: Cuts, rate: FloatArray, latency_s: FloatArray
) -> FloatArray:
    """Return the seconds per micro-batch that full sharding communicates over a ring.

    It gathers the weights twice, and scatters the gradients once.
    """
    num_bytes = (2 * HALF_PRECISION_BYTES + workload.gradient_bytes_per_param) * params
    seconds = (cuts.shards - 1) * (num_bytes / cuts.shards / rate + 3 * latency_s)
    gathered: FloatArray = np.where((cuts.sharding == FULL) & (cuts.shards > 1), seconds, 0.0)
    return gathered


def _local_ring(at: DeviceClass, devices: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return (bytes per second, latency in seconds) of the ring over pipelines of so many devices, each `[num_rows]`.

    The ring is inside a machine if these devices fit into one, else it runs over the fabric.
    """
    gpu = at.training_gpu
    sharing = (2 / np.maximum(devices, 2)) ** gpu.efficiency.link_sharing
    is_inside = devices <= at.gpus_per_machine
    rate = np.where(is_inside, collective.machine_rate(gpu, 2) * sharing, at.fabric_bytes_per_s)
    latency_s = np.where(is_inside, gpu.efficiency.collective_latency_s, at.region.fabric_latency_s)
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


def joined(parts: Sequence[PoolTrainingTerms]) -> PoolTrainingTerms:
    """Return the rows of all parts, one part after the other."""
    names = [each.name for each in fields(PoolTrainingTerms)]
    return PoolTrainingTerms(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def stage_s(workload: Workload, task: Task, at: DeviceClass, layout: Layout, data: int) -> float:
    """Return `PoolTrainingTerms.stage_s` of one layout with `data` pipelines."""
    return float(pool_training_terms(workload, task, at, of_layout(layout, data * layout.pipeline)).stage_s[0])
