"""Generation by continuous batching: seconds of a decoding step, samples a second, a group's time, a whole phase.

One replica runs up to so many sequences (its *slots*, a value of `SLOTS`). A step's time depends on how many run and on
how long they are. A running sequence, seen at a random moment, has the prompt and E[L^2] / (2 E[L]) tokens of its
completion behind it, and as many before it (renewal theory). Each sample pays for its own prompt.

- Continuous (eta >= 1): `batch` sequences always run: a sample costs mean length x step / batch, and its prefill. A
  group is done when its longest sample is; its 99th percentile counts; samples that find no slot wait for one.
- A phase: a replica has `share` samples. If all fit they start at once and step times fall as they end. Else slots are
  refilled (`renewal`), and what runs when the queue is empty is drained. Of all numbers of slots up to what memory
  allows the best counts.

Memory allows as many slots as caches hold sequences of mean context: more are put back as often as they help, and fewer
leave room unused. The longest sequence must fit.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.cost.cuts import FloatArray, IntArray
from planner.cost.memory import sequence_bytes
from planner.cost.overlap import Overlap
from planner.cost.renewal import RATIOS, refilled
from planner.device import collective, layer
from planner.question.hardware import GpuType
from planner.question.workload import Task, Workload

SLOTS = (
    *range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256,
)  # fmt: skip
"""Numbers of sequences that an engine is set up for, as CUDA graphs are; at most vLLM's default `max_num_seqs`."""
PREFILL_TOKENS = 2048
"""Tokens of prompts that are prefilled together."""
_GROUP_QUANTILE = 0.99
_LEAST_FIXED = 1e-6
"""Of a step of one sequence: what is left of it without the sequence."""
_NUM_SHARES = 96
_PARTS = 3
"""Arrays of more than 128 KiB are new memory each time, which takes longer than what is computed in it."""
_SHARES = np.array(sorted({*np.geomspace(1, SLOTS[-1], _NUM_SHARES).tolist(), *map(float, SLOTS)}))


@dataclass(frozen=True, slots=True)
class Tails:
    """Of a set of sequences that run on with none added: pieces of time between ends. Arrays: one entry a piece."""

    tokens: FloatArray
    """That each sequence still running makes in the piece."""
    alive: FloatArray
    """Share of the sequences that run in it."""
    context: FloatArray
    """Their mean tokens, prompt and all, in the middle of it."""


class Replica:
    """`tensor` devices of one machine with one copy of the model. All results are seconds; arrays run over `SLOTS`."""

    def __init__(self, workload: Workload, gpu: GpuType, tensor: int) -> None:
        self.tensor = tensor
        self._workload = workload
        self._gpu = gpu
        self._arch = workload.models[Task.GENERATION]
        self.prefill_s = self._prefill_s()

    def slots(self, free_bytes: FloatArray) -> IntArray:
        """The most that fit into so many bytes of each device: places in `SLOTS`, -1 for none."""
        each, longest = self._sequence_bytes
        return np.where(free_bytes < longest, 0, np.searchsorted(SLOTS, free_bytes / each, side="right")) - 1

    def step_s(self, sequences: FloatArray, context: FloatArray) -> FloatArray:
        """One token for each of `sequences`, elementwise."""
        gpu, arch = self._gpu, self._arch
        layers = layer.decode_s(gpu, arch, tensor=self.tensor, sequences=sequences, context=context)
        payload = 2.0 * sequences * arch.hidden_size
        layers = layers + 2 * collective.machine_all_reduce_s(gpu, payload_bytes=payload, num=self.tensor)
        steps: FloatArray = arch.num_layers * layers + layer.head_s(gpu, arch, tensor=self.tensor, tokens=sequences)
        return steps

    @cached_property
    def _sequence_bytes(self) -> tuple[float, float]:
        """On each device: of a sequence of mean context, and of the longest."""
        workload = self._workload
        longest = workload.prompt_tokens.largest + workload.completion_tokens.largest
        mean, most = (sequence_bytes(workload, self.tensor, each) for each in (mean_context(workload), longest))
        return mean, most

    @cached_property
    def sample_s(self) -> FloatArray:
        """Between two samples with so many sequences always running."""
        running = np.array(SLOTS, dtype=float)
        steps = self.step_s(running, np.full(len(SLOTS), mean_context(self._workload)))
        seconds: FloatArray = self._workload.completion_tokens.mean * steps / running + self.prefill_s
        return seconds

    @cached_property
    def rates(self) -> FloatArray:
        """Samples a second with at most so many sequences running."""
        best: FloatArray = 1 / np.minimum.accumulate(self.sample_s)
        return best

    @cached_property
    def overlap(self) -> Overlap:
        """Of windows on it, without loading. Whatever the slots: with more of them no window makes less."""
        workload = self._workload
        lengths = np.asarray(workload.completion_tokens.quantiles)
        longest, half = float(lengths[-1]), float(lengths[-1]) / 2
        running = float(np.mean(np.maximum(0.0, lengths - half))) / half
        one_s, two_s, full_s = self.step_s(np.array([1.0, 2.0, SLOTS[-1]]), np.full(3, mean_context(workload)))
        return Overlap(
            first_s=self.first_s, slope_per_s=(1 + running) * longest / float(np.mean(lengths)) / self.first_s,
            most=max(0.0, float(full_s / one_s) / (1 - running) - 1) if running < 1 else np.inf,
            fixed_s=self.first_s * max(_LEAST_FIXED, float(2 - two_s / one_s)) if workload.eta > 1 else 0.0,
        )  # fmt: skip

    @cached_property
    def group_s(self) -> FloatArray:
        """99th percentile of a group's time."""
        workload, running = self._workload, np.array(SLOTS, dtype=float)
        longest = workload.completion_tokens.at(_GROUP_QUANTILE ** (1 / workload.group_size))
        token_s = self.sample_s * running / workload.completion_tokens.mean
        waits = np.maximum(0.0, workload.group_size - running) * self.sample_s
        seconds: FloatArray = waits + longest * token_s + self.prefill_s
        return seconds

    @cached_property
    def first_s(self) -> float:
        """A phase of one sample: none is shorter, since any sample may be the longest."""
        return float(self._fresh_s(np.array([1.0]))[0])

    def phase_s(self, share: float, place: int) -> float:
        """Until the last of `share` samples is done on so many slots, refilled as long as there is a queue."""
        full = float(SLOTS[place])
        if share <= full:
            return float(self._fresh_s(np.array([share]))[0])
        beyond = max(0.0, share - RATIOS[-1] * full) * self.sample_s[place]
        return float(np.interp(share / full, RATIOS, self._refilled_s[place]) + beyond)

    def shares(self, seconds: FloatArray) -> FloatArray:
        """[slots, seconds]: samples done in phases so long; the best of all numbers of slots up to each."""
        at_once = np.interp(seconds, self._at_once_s, _SHARES, left=0.0)
        made = np.empty((len(SLOTS), len(seconds)))
        for place, full in enumerate(SLOTS):
            ends = self._refilled_s[place]
            refilled = (
                full * np.interp(seconds, ends, RATIOS) + np.maximum(0, seconds - ends[-1]) / self.sample_s[place]
            )
            made[place] = np.where(seconds >= ends[0], refilled, np.minimum(at_once, full))
        best: FloatArray = np.maximum.accumulate(made, axis=0)
        return best

    def _prefill_s(self) -> float:
        gpu, arch, prompt = self._gpu, self._arch, self._workload.prompt_tokens.mean
        batch = max(prompt, float(PREFILL_TOKENS))
        one = layer.forward_s(gpu, arch, tensor=self.tensor, tokens=batch, sequence=prompt)
        one += 2 * collective.machine_all_reduce_s(gpu, payload_bytes=2 * batch * arch.hidden_size, num=self.tensor)
        return float(arch.num_layers * one * prompt / batch)

    def _fresh_s(self, share: FloatArray) -> FloatArray:
        """All start at once."""
        return share * self.prefill_s + self._drain_s(fresh_tails(self._workload), share)

    @cached_property
    def _at_once_s(self) -> FloatArray:
        """Of `_SHARES` samples that all start together."""
        return np.maximum.accumulate(self._fresh_s(_SHARES))

    @cached_property
    def _refilled_s(self) -> FloatArray:
        """[slots, ratios]: phases of `RATIOS` samples a slot."""
        workload, slots = self._workload, np.array(SLOTS, dtype=float)
        prompt, run = workload.prompt_tokens.mean, refilled(workload.completion_tokens)
        share, full = slots[:, None] * np.array(RATIOS), np.broadcast_to(slots[:, None], (len(SLOTS), len(RATIOS)))
        seconds = share * self.prefill_s + run.full_tokens * self.step_s(full, prompt + run.full_age)
        drains = []
        for some in np.array_split(slots, _PARTS):
            alive = np.maximum(1.0, some[:, None, None] * run.alive)
            drains.append(self.step_s(alive, np.broadcast_to(prompt + run.age, alive.shape)) @ run.tokens)
        seconds += np.concatenate(drains)
        seconds[:, 0] = np.maximum.accumulate(self._fresh_s(slots))
        all_full: FloatArray = np.maximum(seconds, share * self.sample_s[:, None])
        return np.maximum.accumulate(all_full, axis=1)

    def _drain_s(self, tails: Tails, running: FloatArray) -> FloatArray:
        alive = np.maximum(1.0, running[:, None] * tails.alive)
        steps = self.step_s(alive, np.broadcast_to(tails.context, alive.shape))
        seconds: FloatArray = steps @ tails.tokens
        return seconds


def mean_age(workload: Workload) -> float:
    """Tokens that a running sequence has made, and has still to make, at a random moment."""
    lengths = np.asarray(workload.completion_tokens.quantiles)
    return float(np.mean(lengths**2) / (2 * np.mean(lengths)))


def mean_context(workload: Workload) -> float:
    """Tokens of a running sequence at a random moment."""
    return workload.prompt_tokens.mean + mean_age(workload)


def fresh_tails(workload: Workload) -> Tails:
    """Sequences that start together."""
    ends = np.concatenate([[0.0], np.asarray(workload.completion_tokens.quantiles)])
    num = len(ends) - 1
    return Tails(
        tokens=np.diff(ends), alive=1 - np.arange(num) / num,
        context=workload.prompt_tokens.mean + (ends[1:] + ends[:-1]) / 2,
    )  # fmt: skip
