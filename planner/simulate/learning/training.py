"""Seconds of one training step on a mesh, with the sampled lengths of its samples.

The samples of each update are split over all pipelines, balanced by tokens. A micro-batch takes the seconds of its
tokens. A pipeline runs in 1F1B order: its seconds are the sum over micro-batches in the slowest stage, plus the longest
micro-batch once in each other stage. The last stage has the output head, and fewer layers if the layers do not divide
evenly. An update ends with the slowest pipeline, the all-reduce of gradients and the optimizer.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from planner.answer.placement import Pool, Sharding
from planner.devices import collective, layer
from planner.problem.architecture import HALF_PRECISION_BYTES
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import Task, Workload
from planner.simulate.generation.resident_memory import stage_params, trained_fraction
from planner.simulate.learning.scoring import split_samples
from planner.simulate.settings import SETTINGS


class PoolPipelines:
    """The pipelines of one pool."""

    def __init__(self, workload: Workload, task: Task, at: DeviceClass, pool: Pool) -> None:
        self.at = at
        self.layout = pool.layout(task)
        self.num_pipelines = pool.num_units // self.layout.pipeline
        self.num_copies = self.layout.copies
        self._pool = pool
        self._task = task
        self._workload = workload
        self._arch = workload.models[task]
        longest = workload.prompt_tokens.largest + workload.completion_tokens.largest
        self._params = stage_params(workload, task, self.layout)
        # Seconds of each stage on a grid of tokens per micro-batch, `[stage_token_counts]` each. Micro-batches in
        # between are interpolated, so that each one costs a lookup instead of the whole layer model.
        self._tokens = np.geomspace(8.0, self.layout.micro_batch * max(longest, 16.0), SETTINGS.stage_token_counts)
        stages = range(self.layout.pipeline)
        self._stage_s = {stage: [self._slot_s(stage, tokens) for tokens in self._tokens] for stage in stages}
        # The stage that is slowest with full micro-batches is taken as the slowest for all.
        self._slowest = max(stages, key=lambda stage: self._stage_s[stage][-1])

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of one pipeline with full stages."""
        # With full stages a micro-batch leaves the pipeline in each slot of the slowest stage.
        tokens = self.layout.micro_batch * self._workload.tokens_per_sample
        return tokens / float(np.interp(tokens, self._tokens, self._stage_s[self._slowest]))

    def pipeline_s(self, samples: Sequence[int]) -> float:
        """Return the seconds of one pipeline over its samples, which are sorted from long to short."""
        if not samples:
            return 0.0
        # 1F1B: every micro-batch passes the slowest stage. Filling and draining add the longest one in each other
        # stage.
        batches = _micro_batches(samples, self.layout.micro_batch)
        slots = np.interp(batches, self._tokens, self._stage_s[self._slowest])
        fill = sum(
            float(np.interp(max(batches), self._tokens, self._stage_s[stage]))
            for stage in range(self.layout.pipeline)
            if stage != self._slowest
        )
        return float(np.sum(slots)) + fill

    def payload_bytes(self) -> float:
        """Return the bytes of gradients on one device of the largest stage that an update reduces at its end."""
        whole = self._workload.gradient_bytes_per_param * self._params * trained_fraction(self._workload, self._task)
        return whole / self._num_shards if self.num_copies > 1 else whole

    def update_s(self) -> float:
        """Return the seconds of the optimizer on one device."""
        params = self._params * trained_fraction(self._workload, self._task)
        # Each pipeline updates its shard of the parameters.
        if self.layout.sharding is not Sharding.NONE:
            params /= self._num_shards
        gpu, workload = self.at.training_gpu, self._workload
        updated_s = layer.update_s(gpu, params=params, bytes_per_param=workload.train_state_bytes_per_param)
        # Each update has its share of what a step takes beside passes and updates.
        updates = workload.epochs_per_step * workload.minibatches_per_step
        fit = gpu.efficiency
        return updated_s + (fit.step_overhead_s + fit.sample_overhead_s * workload.samples_per_step) / updates

    def ring(self) -> tuple[float, float]:
        """Return (bytes per second, latency) of the slowest link in a ring over the pool's pipelines, or its copies."""
        rate, latency_s = self._ring(self.num_pipelines)
        # Each device of a machine has a ring over the copies, and all of them use the machine's link.
        return rate / self._num_shards if self.num_copies > 1 else rate, latency_s

    @property
    def _num_shards(self) -> int:
        return self.num_pipelines // self.num_copies

    def _ring(self, num_pipelines: int) -> tuple[float, float]:
        gpu, region = self.at.training_gpu, self.at.region
        # Pipelines within one machine use the links inside it, otherwise the fabric.
        gpus = num_pipelines * self.layout.pipeline * self.layout.tensor
        if gpus <= self.at.gpus_per_machine:
            return collective.machine_rate(gpu, gpus), gpu.efficiency.collective_latency_s
        return self.at.fabric_bytes_per_s, region.fabric_latency_s

    def _layers(self, stage: int) -> int:
        layers, more = divmod(self._arch.num_layers, self.layout.pipeline)
        # The first stages take the layers that are left over, so the last one, which has the head, gets fewer.
        return layers + (stage < more)

    def _slot_s(self, stage: int, tokens: float) -> float:
        """Return the seconds of one micro-batch in one stage: forward and backward pass, collectives, and hops."""
        gpu, arch, layout = self.at.training_gpu, self._arch, self.layout
        # Attention is that of samples of equal length.
        sequence = tokens / layout.micro_batch
        forward = layer.forward_s(gpu, arch, tensor=layout.tensor, tokens=tokens, sequence=sequence)
        backward = layer.backward_s(gpu, arch, tensor=layout.tensor, tokens=tokens, sequence=sequence)
        # LoRA skips the gradients of the frozen weights.
        if self._workload.lora_rank:
            backward -= layer.dense_s(gpu, arch, tensor=layout.tensor, tokens=tokens)
        payload = HALF_PRECISION_BYTES * tokens * arch.hidden_size
        # Two all-reduces a layer in the forward pass, and two in the backward pass.
        both = 2 * collective.machine_all_reduce_s(gpu, payload_bytes=payload, num=layout.tensor)
        # Recomputing activations repeats the forward pass with its all-reduces.
        passes = 2 if layout.recompute else 1
        slot = self._layers(stage) * (passes * (forward + both) + backward + both)
        # The head costs a forward and two backward products. LoRA leaves out the one for the gradients of its weights.
        if stage == layout.pipeline - 1 and self._task is Task.ACTOR_TRAINING:
            slot += (2 if self._workload.lora_rank else 3) * layer.head_s(
                gpu, arch, tensor=layout.tensor, tokens=tokens
            )
        if layout.pipeline > 1:
            # Activations come from the stage before, and gradients from the stage after; each device sends its tensor
            # shard.
            slot += 2 * self._hop_s(payload / layout.tensor)
        if layout.sharding is Sharding.FULL and self._num_shards > 1:
            rate, latency_s = self._ring(self._num_shards)
            # Full sharding: two gathers and a reduce-scatter per micro-batch, which overlap with computing.
            of_each = 2 * HALF_PRECISION_BYTES + self._workload.gradient_bytes_per_param
            gathers = collective.all_gather_s(
                payload_bytes=of_each * self._params,
                num=self._num_shards,
                bytes_per_s=rate,
                latency_s=3 * latency_s,
            )
            slot = max(slot, gathers)
        return slot

    def _hop_s(self, payload: float) -> float:
        """Return the seconds to the next stage. The hop is inside the machine if whole pipelines fill the machine."""
        gpu, region = self.at.training_gpu, self.at.region
        if self.at.gpus_per_machine % (self.layout.tensor * self.layout.pipeline) == 0:
            return payload / collective.machine_rate(gpu, 2) + gpu.efficiency.collective_latency_s
        return payload / self.at.fabric_bytes_per_s + region.fabric_latency_s


def _micro_batches(samples: Sequence[int], size: int) -> list[float]:
    """Return the tokens of each micro-batch: as few as hold the samples, of about equal size.

    Samples are assigned from the first to the last micro-batch and back again.
    """
    num = math.ceil(len(samples) / size)
    tokens = [0.0] * num
    for i, sample in enumerate(samples):
        # Samples come sorted from long to short, so going back and forth balances the sums.
        lap, at = divmod(i, num)
        tokens[at if lap % 2 == 0 else num - 1 - at] += sample
    return tokens


class SimulatedMesh:
    """One task that trains on the blocks of a mesh.

    `between` returns (bytes per second, latency) of the links from block to block at the start of a step. If one of
    them carries nothing then, the step takes forever.
    """

    def __init__(
        self, workload: Workload, blocks: Sequence[PoolPipelines], between: Callable[[], Sequence[tuple[float, float]]]
    ) -> None:
        self._workload = workload
        self._blocks = tuple(blocks)
        self._speeds = [block.tokens_per_s for block in blocks for _ in range(block.num_pipelines)]
        self._between = between
        self._update_s = max(block.update_s() for block in blocks)

    def seconds(self, tokens: Sequence[int]) -> float:
        """Return the seconds of a step over samples of these lengths, in the order in which they are trained on."""
        updates = self._workload.minibatches_per_step
        # Samples are cut into mini-batches in their order. Each of them ends with an optimizer step.
        size = math.ceil(len(tokens) / updates)
        # Read once: the rates at the start of the step hold for all of its updates.
        whole, ends_s = 0.0, self._ends_s
        for first in range(0, len(tokens), size):
            # `_speeds` has one entry per pipeline, block by block. The loops below consume the parts in the same order.
            lengths_by_worker = iter(split_samples(tokens[first : first + size], self._speeds))
            slowest = max(
                block.pipeline_s(next(lengths_by_worker)) for block in self._blocks for _ in range(block.num_pipelines)
            )
            whole += slowest + ends_s
        return self._workload.epochs_per_step * whole

    @property
    def _ends_s(self) -> float:
        """Seconds of one update's all-reduce and optimizer, at the current rates."""
        return self._reduce_s(self._between()) + self._update_s

    def _reduce_s(self, between: Sequence[tuple[float, float]]) -> float:
        """Return the seconds of one ring all-reduce of gradients over all pipelines; inf if a link carries nothing.

        Full sharding reduces gradients during the backward pass instead.
        """
        members = sum(block.num_pipelines for block in self._blocks)
        # A mesh of one block with full sharding pays for its reduce-scatters in `_slot_s`. Only copies remain.
        if len(self._blocks) == 1 and self._blocks[0].layout.sharding is Sharding.FULL:
            members = self._blocks[0].num_copies
        # A block with a single pipeline has no link of its own in a ring of several blocks.
        links = [block.ring() for block in self._blocks if len(self._blocks) == 1 or block.num_pipelines > 1]
        links += between
        if not all(rate for rate, _ in links):
            return math.inf
        # One ring over all pipelines: the largest payload at the rate of the slowest link.
        return collective.all_reduce_s(
            payload_bytes=max(block.payload_bytes() for block in self._blocks),
            num=members,
            bytes_per_s=min(rate for rate, _ in links),
            latency_s=max(latency for _, latency in links),
        )
