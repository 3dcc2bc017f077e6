"""How fast one replica decodes and prefills, and how many tokens its caches hold.

A decoding step of n sequences is taken as linear in their mean context, between the contexts of a fresh and of a
longest sequence: the roofline of `planner.device.layer` is linear there, and so jumps over many steps have a closed
form. Prompts ride along with decoding steps (chunked prefill): what they cost is what the step then takes longer.
"""

from planner.device import collective, layer, memory
from planner.question.architecture import Architecture
from planner.question.hardware import GpuType
from planner.question.workload import Task, Workload

_HALF = 2
CHUNK_TOKENS = 2048
"""Prompt tokens of one step. Source: vLLM's default `max_num_batched_tokens` with chunked prefill."""
_ROUNDED = 64
"""Prefills are priced at multiples of so many tokens."""


class Speed:
    """Of one replica: `tensor` devices of one machine."""

    def __init__(self, workload: Workload, gpu: GpuType, tensor: int) -> None:
        self._gpu = gpu
        self._arch: Architecture = workload.models[Task.GENERATION]
        self._tensor = tensor
        self._prompt = workload.prompt_tokens.mean
        self._contexts = (self._prompt, self._prompt + workload.completion_tokens.largest)
        self.known: dict[int, tuple[float, float]] = {}
        """What `decode` has said so far, by sequences."""
        self._prefill: dict[tuple[int, int], float] = {}

    def decode(self, sequences: int) -> tuple[float, float]:
        """(a, b): a step of so many sequences takes a + b x (their mean context) seconds."""
        found = self.known.get(sequences)
        if found is None:
            low, high = self._contexts
            fresh, old = self._step_s(sequences, low), self._step_s(sequences, high)
            slope = (old - fresh) / (high - low)
            found = self.known[sequences] = (fresh - slope * low, slope)
        return found

    def prefill_s(self, sequences: int, tokens: int) -> float:
        """What steps of so many running sequences take longer when they also read `tokens` tokens of prompts."""
        key = (sequences, -(-tokens // _ROUNDED))
        found = self._prefill.get(key)
        if found is None:
            whole, rest = divmod(key[1] * _ROUNDED, CHUNK_TOKENS)
            found = whole * self._chunk_s(sequences, CHUNK_TOKENS)
            found = self._prefill[key] = found + (self._chunk_s(sequences, rest) if rest else 0.0)
        return found

    def _step_s(self, sequences: float, context: float) -> float:
        gpu, arch = self._gpu, self._arch
        one = layer.decode_s(gpu, arch, tensor=self._tensor, sequences=sequences, context=context)
        one += 2 * self._reduce_s(sequences)
        return arch.num_layers * one + layer.head_s(gpu, arch, tensor=self._tensor, tokens=sequences)

    def _chunk_s(self, sequences: int, tokens: int) -> float:
        gpu, arch = self._gpu, self._arch
        rows = sequences + tokens
        mixed = layer.forward_s(gpu, arch, tensor=self._tensor, tokens=rows, sequence=self._prompt * tokens / rows)
        mixed += 2 * self._reduce_s(rows)
        plain = 0.0
        if sequences:
            plain = layer.decode_s(gpu, arch, tensor=self._tensor, sequences=sequences, context=0.0)
            plain += 2 * self._reduce_s(sequences)
        return arch.num_layers * max(0.0, mixed - plain)

    def _reduce_s(self, rows: float) -> float:
        payload = _HALF * rows * self._arch.hidden_size
        return collective.machine_all_reduce_s(self._gpu, payload_bytes=payload, num=self._tensor)


def cache_tokens(workload: Workload, gpu: GpuType, tensor: int, resident_bytes: float) -> int:
    """Tokens whose keys and values fit beside what is resident on each device of a replica."""
    free = memory_for_tasks_bytes(gpu) - resident_bytes
    return max(0, int(free / memory.kv_bytes_per_token(workload.models[Task.GENERATION], tensor=tensor)))


def running_tokens(workload: Workload) -> float:
    """Of a running sequence at a random moment: it has half of its length, and long ones are met more often.

    An engine that runs many more than its caches hold of these puts back as many as it finishes.
    """
    lengths = workload.completion_tokens.quantiles
    return workload.prompt_tokens.mean + sum(each * each for each in lengths) / (2 * sum(lengths))


def memory_for_tasks_bytes(gpu: GpuType) -> float:
    """Of one device: nine tenths, and a gibibyte of it is the driver's and the communicators'."""
    return 0.9 * gpu.memory_bytes - (0.0 if gpu.is_cpu else 2.0**30)
