"""Generation by continuous batching: seconds of a decoding step, of a sample, of a group of samples and of a phase.

A replica runs up to a fixed number of sequences at a time (its *slots*, a value of `SLOTS`). The time of a decoding
step depends on how many sequences run and on their mean context. By renewal theory a running sequence has, at a random
moment, its prompt and E[L^2] / (2 E[L]) completion tokens behind it, and as many completion tokens before it. Each
sample also pays for its own prefill.

- Continuous generation (eta >= 1): `batch` sequences always run. A sample costs mean length x step / batch, plus its
  prefill. A group is done when its longest sample is done; its time is counted at the 99th percentile, and samples that
  find no free slot wait for one.
- A phase: a replica has `share` samples to make. If all fit into its slots, they start together and steps get faster as
  sequences end. Otherwise slots are refilled while there is a queue (`planner.cost.tasks.slot_refill`), and what runs
  when the queue is empty drains. The best number of slots up to what memory allows counts.

Memory allows as many slots as its KV cache holds sequences of mean context, and the longest sequence must fit. The
number is rounded down to a value of `SLOTS`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.cost.tasks.layer_cuts import FloatArray, IntArray
from planner.cost.tasks.memory import sequence_bytes
from planner.cost.tasks.slot_refill import RATIOS, refilled
from planner.cost.tasks.version_overlap import Overlap
from planner.devices import collective, layer
from planner.problem.hardware import GpuType
from planner.problem.workload import Task, Workload

SLOTS = (
    *range(1, 9),
    10,
    12,
    14,
    16,
    20,
    24,
    28,
    32,
    40,
    48,
    56,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
)
"""Numbers of sequences that an engine is set up for, as for CUDA graphs. The largest is vLLM's default
`max_num_seqs`."""
PREFILL_TOKENS = 2048
"""Prompt tokens that are prefilled in one forward pass. Chosen by hand."""
_GROUP_QUANTILE = 0.99
"""Quantile of a group's duration that counts as its time."""
_LEAST_FIXED = 1e-6
"""Lower limit of the fixed part of a decoding step, as a fraction of a step with one sequence. It avoids a division by
0."""
_NUM_SHARES = 96
"""Geometrically spaced numbers of samples for which a phase without refilling is tabulated. Chosen by hand."""
_PARTS = 3
"""Parts in which the drain of a queue is computed. Arrays above 128 KiB are allocated anew each time, which would take
longer than the arithmetic in them."""
_SHARES = np.array(sorted({*np.geomspace(1, SLOTS[-1], _NUM_SHARES).tolist(), *map(float, SLOTS)}))
"""Numbers of samples at which a phase without refilling is tabulated, `[num_shares]`."""


@dataclass(frozen=True, slots=True)
class DrainIntervals:
    """A set of sequences that decode without new ones being added, divided into intervals between ends.

    Each array is `[num_intervals]`.
    """

    tokens: FloatArray
    """Tokens that each running sequence decodes in the interval."""
    alive: FloatArray
    """Fraction of the sequences that still run in the interval."""
    context: FloatArray
    """Mean tokens of the running sequences, prompt included, in the middle of the interval."""


class Replica:
    """One copy of the generating model on `tensor` devices of one machine.

    Results are seconds unless said otherwise. Arrays called `[num_slots]` have one entry for each value of `SLOTS`.
    """

    def __init__(self, workload: Workload, gpu: GpuType, tensor: int) -> None:
        self.tensor = tensor
        self._workload = workload
        self._gpu = gpu
        self._arch = workload.models[Task.GENERATION]
        self.prefill_s = self._prefill_s()

    def slots(self, free_bytes: FloatArray) -> IntArray:
        """Return the index in `SLOTS` of the most sequences that fit into `free_bytes` of each device.

        The result is -1 if none fits.
        """
        each, longest = self._sequence_bytes
        return np.where(free_bytes < longest, 0, np.searchsorted(SLOTS, free_bytes / each, side="right")) - 1

    def step_s(self, sequences: FloatArray, context: FloatArray) -> FloatArray:
        """Return the seconds of one decoding step of `sequences` sequences with mean context `context`, elementwise."""
        gpu, arch = self._gpu, self._arch
        layers = layer.decode_s(gpu, arch, tensor=self.tensor, sequences=sequences, context=context)
        # Two tensor-parallel all-reduces per layer.
        payload = 2.0 * sequences * arch.hidden_size
        layers = layers + 2 * collective.machine_all_reduce_s(gpu, payload_bytes=payload, num=self.tensor)
        steps: FloatArray = arch.num_layers * layers + layer.head_s(gpu, arch, tensor=self.tensor, tokens=sequences)
        return steps

    @cached_property
    def _sequence_bytes(self) -> tuple[float, float]:
        """KV-cache bytes on each device: (of a sequence of mean context, of the longest sequence)."""
        workload = self._workload
        longest = workload.prompt_tokens.largest + workload.completion_tokens.largest
        mean, most = (sequence_bytes(workload, self.tensor, each) for each in (mean_context(workload), longest))
        return mean, most

    @cached_property
    def sample_s(self) -> FloatArray:
        """Seconds between two finished samples while each number of slots is always full, `[num_slots]`."""
        running = np.array(SLOTS, dtype=float)
        steps = self.step_s(running, np.full(len(SLOTS), mean_context(self._workload)))
        seconds: FloatArray = self._workload.completion_tokens.mean * steps / running + self.prefill_s
        return seconds

    @cached_property
    def rates(self) -> FloatArray:
        """Samples per second with at most each number of slots in use, `[num_slots]`; it never decreases."""
        best: FloatArray = 1 / np.minimum.accumulate(self.sample_s)
        return best

    @cached_property
    def overlap(self) -> Overlap:
        """Slow-down of overlapping windows on this replica, without the time to load a version.

        It is computed for any number of slots, since more slots never make a window produce less.
        """
        workload = self._workload
        lengths = np.asarray(workload.completion_tokens.quantiles)
        longest, half = float(lengths[-1]), float(lengths[-1]) / 2
        # Fraction of a version's sequences that still run, averaged over the second half of the longest sequence's
        # time.
        running = float(np.mean(np.maximum(0.0, lengths - half))) / half
        # Two steps with one and two sequences separate the fixed part of a step from the part per sequence.
        one_s, two_s, full_s = self.step_s(np.array([1.0, 2.0, SLOTS[-1]]), np.full(3, mean_context(workload)))
        return Overlap(
            first_s=self.first_s,
            slope_per_s=(1 + running) * longest / float(np.mean(lengths)) / self.first_s,
            most=max(0.0, float(full_s / one_s) / (1 - running) - 1) if running < 1 else np.inf,
            fixed_s=self.first_s * max(_LEAST_FIXED, float(2 - two_s / one_s)) if workload.eta > 1 else 0.0,
        )

    @cached_property
    def group_s(self) -> FloatArray:
        """99th percentile of the seconds that a group of samples takes, `[num_slots]`."""
        workload, running = self._workload, np.array(SLOTS, dtype=float)
        # The longest of n independent samples is below x with probability p if each one is with probability p^(1/n).
        longest = workload.completion_tokens.at(_GROUP_QUANTILE ** (1 / workload.group_size))
        token_s = self.sample_s * running / workload.completion_tokens.mean
        # Samples beyond the number of slots wait until a slot is free.
        waits = np.maximum(0.0, workload.group_size - running) * self.sample_s
        seconds: FloatArray = waits + longest * token_s + self.prefill_s
        return seconds

    @cached_property
    def first_s(self) -> float:
        """Seconds of a phase of one sample. No phase is shorter, because any sample may be the longest one."""
        return float(self._fresh_s(np.array([1.0]))[0])

    def phase_s(self, share: float, place: int) -> float:
        """Return the seconds until the last of `share` samples is done with `SLOTS[place]` slots.

        Slots are refilled from a queue.
        """
        full = float(SLOTS[place])
        if share <= full:
            return float(self._fresh_s(np.array([share]))[0])
        beyond = max(0.0, share - RATIOS[-1] * full) * self.sample_s[place]
        return float(np.interp(share / full, RATIOS, self._refilled_s[place]) + beyond)

    def shares(self, seconds: FloatArray) -> FloatArray:
        """Return `[num_slots, num_seconds]`: samples done in phases of these lengths.

        Each entry uses the best number of slots up to its own.
        """
        # Invert the table of phases in which all samples start together.
        at_once = np.interp(seconds, self._at_once_s, _SHARES, left=0.0)
        made = np.empty((len(SLOTS), len(seconds)))
        for place, full in enumerate(SLOTS):
            ends = self._refilled_s[place]
            refilled = (
                full * np.interp(seconds, ends, RATIOS) + np.maximum(0, seconds - ends[-1]) / self.sample_s[place]
            )
            # Refilling needs at least one sample per slot; a shorter phase holds what starts at once, at most one per
            # slot.
            made[place] = np.where(seconds >= ends[0], refilled, np.minimum(at_once, full))
        best: FloatArray = np.maximum.accumulate(made, axis=0)
        return best

    def _prefill_s(self) -> float:
        """Return the seconds that one sample takes before it decodes: its part of a full prefill batch, and its
        overhead.
        """
        gpu, arch, prompt = self._gpu, self._arch, self._workload.prompt_tokens.mean
        batch = max(prompt, float(PREFILL_TOKENS))
        one = layer.forward_s(gpu, arch, tensor=self.tensor, tokens=batch, sequence=prompt)
        one += 2 * collective.machine_all_reduce_s(gpu, payload_bytes=2 * batch * arch.hidden_size, num=self.tensor)
        return float(arch.num_layers * one * prompt / batch) + gpu.efficiency.sample_overhead_s

    def _fresh_s(self, share: FloatArray) -> FloatArray:
        """Return the seconds of phases in which `share` samples all start together, with the shape of `share`."""
        return share * self.prefill_s + self._drain_s(fresh_tails(self._workload), share)

    @cached_property
    def _at_once_s(self) -> FloatArray:
        """Seconds of phases in which `_SHARES` samples all start together, `[num_shares]`; made monotone."""
        return np.maximum.accumulate(self._fresh_s(_SHARES))

    @cached_property
    def _refilled_s(self) -> FloatArray:
        """Seconds of phases of `RATIOS` samples per slot, `[num_slots, num_ratios]`.

        They are made monotone, and are never shorter than with all slots always full.
        """
        workload, slots = self._workload, np.array(SLOTS, dtype=float)
        prompt, run = workload.prompt_tokens.mean, refilled(workload.completion_tokens)
        share, full = slots[:, None] * np.array(RATIOS), np.broadcast_to(slots[:, None], (len(SLOTS), len(RATIOS)))
        # Prefills, and decoding steps with all slots full.
        seconds = share * self.prefill_s + run.full_tokens * self.step_s(full, prompt + run.full_age)
        # Decoding steps while the last sequences drain: [slots of this part, num_ratios, num_pieces] @ [num_pieces].
        drains = []
        for some in np.array_split(slots, _PARTS):
            alive = np.maximum(1.0, some[:, None, None] * run.alive)
            drains.append(self.step_s(alive, np.broadcast_to(prompt + run.age, alive.shape)) @ run.tokens)
        seconds += np.concatenate(drains)
        # At a ratio of 1 nothing is refilled, so the exact tail of sequences that start together counts.
        seconds[:, 0] = np.maximum.accumulate(self._fresh_s(slots))
        all_full: FloatArray = np.maximum(seconds, share * self.sample_s[:, None])
        return np.maximum.accumulate(all_full, axis=1)

    def _drain_s(self, tails: DrainIntervals, running: FloatArray) -> FloatArray:
        """Return the seconds until `running` sequences with these tails have all ended, with the shape of `running`."""
        alive = np.maximum(1.0, running[:, None] * tails.alive)
        steps = self.step_s(alive, np.broadcast_to(tails.context, alive.shape))
        seconds: FloatArray = steps @ tails.tokens
        return seconds


def mean_age(workload: Workload) -> float:
    """Return the completion tokens that a running sequence has behind it, and equally before it, at a random moment."""
    lengths = np.asarray(workload.completion_tokens.quantiles)
    return float(np.mean(lengths**2) / (2 * np.mean(lengths)))


def mean_context(workload: Workload) -> float:
    """Return the mean tokens, prompt included, of a running sequence at a random moment."""
    return workload.prompt_tokens.mean + mean_age(workload)


def fresh_tails(workload: Workload) -> DrainIntervals:
    """Return the intervals between ends of sequences that start together."""
    ends = np.concatenate([[0.0], np.asarray(workload.completion_tokens.quantiles)])
    num = len(ends) - 1
    # Between two neighbouring quantiles a share 1 / num of the sequences ends; `alive` is the share that runs before.
    # The mean context there is the prompt and the middle of the interval.
    return DrainIntervals(
        tokens=np.diff(ends),
        alive=1 - np.arange(num) / num,
        context=workload.prompt_tokens.mean + (ends[1:] + ends[:-1]) / 2,
    )
