"""Seconds of one scoring pass: the forward pass over a batch, split over replicas in proportion to their speed.

Samples are packed: a replica takes `pack_tokens` tokens at a time (`planner.simulate.settings`), and attention
stays within each sample.
"""

import heapq
import math
from collections.abc import Sequence

from planner.answer.placement import Pool
from planner.devices import collective, layer
from planner.problem.architecture import HALF_PRECISION_BYTES
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import Task, Workload
from planner.simulate.settings import SETTINGS


class ScoringSpeed:
    """Speed of one replica for one task."""

    def __init__(self, workload: Workload, task: Task, at: DeviceClass, pool: Pool) -> None:
        self._task = task
        self._arch = workload.models[task]
        self._gpu = at.training_gpu
        self._tensor = pool.layout(task).tensor
        self._sample_tokens = workload.tokens_around_a_token
        self.replicas_per_unit = pool.unit_gpus // self._tensor

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second in full packs of the workload's samples."""
        return SETTINGS.pack_tokens / self._pack_s(SETTINGS.pack_tokens, self._sample_tokens)

    def seconds(self, samples: Sequence[int]) -> float:
        """Return the seconds of samples of these lengths, pack after pack. Longer samples cost more attention."""
        if not samples:
            return 0.0
        # The mean length of the sample that a token belongs to, weighted by tokens: attention costs grow with it.
        sample_tokens = sum(num * num for num in samples) / sum(samples)
        # Samples are packed without gaps: full packs and one rest.
        whole, rest = divmod(sum(samples), SETTINGS.pack_tokens)
        packs_s = whole * self._pack_s(SETTINGS.pack_tokens, sample_tokens) if whole else 0.0
        return packs_s + (self._pack_s(rest, sample_tokens) if rest else 0.0)

    def _pack_s(self, tokens: int, sample_tokens: float) -> float:
        """Return the seconds of one pack; `sample_tokens` is the mean length of the sample that a token belongs to."""
        one = layer.forward_s(self._gpu, self._arch, tensor=self._tensor, tokens=float(tokens), sequence=sample_tokens)
        payload = HALF_PRECISION_BYTES * tokens * self._arch.hidden_size
        # Tensor parallelism reduces activations twice a layer.
        one += 2 * collective.machine_all_reduce_s(self._gpu, payload_bytes=payload, num=self._tensor)
        whole = self._arch.num_layers * one
        # Only the reference model gives probabilities of tokens, which takes the output head. Reward and critic end in
        # one number.
        if self._task is Task.REFERENCE:
            whole += layer.head_s(self._gpu, self._arch, tensor=self._tensor, tokens=tokens)
        return whole


def split_samples(tokens: Sequence[int], speeds: Sequence[float]) -> list[list[int]]:
    """Split samples over workers: the longest first, each to the worker that would finish it first.

    `speeds` are tokens per second. This is the greedy list schedule for uniform machines (longest processing time
    first). Return the lengths that each worker gets.
    """
    lengths_by_worker: list[list[int]] = [[] for _ in speeds]
    # Workers of equal speed share one heap of (tokens so far, index). Only the least loaded one of each speed can be
    # the best, so the loop below compares speeds and not workers.
    idle: dict[float, list[tuple[int, int]]] = {}
    for i, speed in enumerate(speeds):
        idle.setdefault(speed, []).append((0, i))
    # Fast workers first: they win ties.
    kinds = sorted(idle.items(), reverse=True)
    loads = kinds[0][1] if kinds else []
    for num in sorted(tokens, reverse=True):
        if len(kinds) > 1:
            least_s = math.inf
            for speed, each in kinds:
                end_s = (each[0][0] + num) / speed
                if end_s < least_s:
                    least_s, loads = end_s, each
        # With a single speed this is the least loaded worker.
        load, i = loads[0]
        heapq.heapreplace(loads, (load + num, i))
        lengths_by_worker[i].append(num)
    return lengths_by_worker
