"""Speed of one inference replica: seconds of decoding steps and prefill, and tokens that its caches hold.

The seconds of a decoding step of n sequences are taken as linear in their mean context, between the contexts of a fresh
and of the longest sequence. The roofline of `planner.devices.layer` is linear there, so jumps over many steps have a
closed form. Prompts are read along with decoding steps (chunked prefill): their cost is by how much the steps get
longer.
"""

from planner.devices import collective, layer, memory
from planner.problem.architecture import HALF_PRECISION_BYTES, Architecture
from planner.problem.hardware import GpuType
from planner.problem.workload import Task, Workload
from planner.simulate.settings import SETTINGS


class Speed:
    """Speed of one replica, which is `tensor` devices of one machine."""

    def __init__(self, workload: Workload, gpu: GpuType, tensor: int) -> None:
        self._gpu = gpu
        self._arch: Architecture = workload.models[Task.GENERATION]
        self._tensor = tensor
        self._prompt = workload.prompt_tokens.mean
        self._contexts = (self._prompt, self._prompt + workload.completion_tokens.largest)
        self.known: dict[int, tuple[float, float]] = {}
        """Results of `decode` so far, by number of sequences."""
        self._prefill: dict[tuple[int, int], float] = {}

    def decode(self, sequences: int) -> tuple[float, float]:
        """Return (a, b) such that a step of this number of sequences takes a + b x (mean context) seconds."""
        found = self.known.get(sequences)
        if found is None:
            low, high = self._contexts
            fresh, old = self._step_s(sequences, low), self._step_s(sequences, high)
            # The line through the two contexts; its value at context 0 is the constant part.
            slope = (old - fresh) / (high - low)
            found = self.known[sequences] = (fresh - slope * low, slope)
        return found

    def prefill_s(self, sequences: int, tokens: int) -> float:
        """Return the seconds by which reading `tokens` prompt tokens lengthens steps of this number of sequences."""
        key = (sequences, -(-tokens // SETTINGS.prefill_multiple_tokens))
        found = self._prefill.get(key)
        if found is None:
            # Prompts are read in full chunks and one rest, each along with a decoding step of the running sequences.
            whole, rest = divmod(key[1] * SETTINGS.prefill_multiple_tokens, SETTINGS.chunk_tokens)
            found = whole * self._chunk_s(sequences, SETTINGS.chunk_tokens)
            found += self._chunk_s(sequences, rest) if rest else 0.0
            # What a sample takes beside the passes is spread over its prompt.
            found += self._gpu.efficiency.sample_overhead_s * tokens / self._prompt
            self._prefill[key] = found
        return found

    def _step_s(self, sequences: float, context: float) -> float:
        gpu, arch = self._gpu, self._arch
        one = layer.decode_s(gpu, arch, tensor=self._tensor, sequences=sequences, context=context)
        # Tensor parallelism reduces activations twice a layer: after attention and after the MLP.
        one += 2 * self._reduce_s(sequences)
        return arch.num_layers * one + layer.head_s(gpu, arch, tensor=self._tensor, tokens=sequences)

    def _chunk_s(self, sequences: int, tokens: int) -> float:
        """Return the seconds by which `tokens` prompt tokens lengthen one step: mixed step less plain decoding step."""
        gpu, arch = self._gpu, self._arch
        # The mixed step multiplies the rows of decoding and prefill at once. Only prompt tokens attend to each other
        # here, so their length is averaged over all rows.
        rows = sequences + tokens
        mixed = layer.forward_s(gpu, arch, tensor=self._tensor, tokens=rows, sequence=self._prompt * tokens / rows)
        mixed += 2 * self._reduce_s(rows)
        plain = 0.0
        if sequences:
            # Attention over earlier context (0 here) is in both steps and cancels out.
            plain = layer.decode_s(gpu, arch, tensor=self._tensor, sequences=sequences, context=0.0)
            plain += 2 * self._reduce_s(sequences)
        return arch.num_layers * max(0.0, mixed - plain)

    def _reduce_s(self, rows: float) -> float:
        payload = HALF_PRECISION_BYTES * rows * self._arch.hidden_size
        return collective.machine_all_reduce_s(self._gpu, payload_bytes=payload, num=self._tensor)


def cache_tokens(workload: Workload, gpu: GpuType, tensor: int, resident_bytes: float) -> int:
    """Return the number of tokens whose keys and values fit next to `resident_bytes` on each device of a replica."""
    free = memory_for_tasks_bytes(gpu) - resident_bytes
    return max(0, int(free / memory.kv_bytes_per_token(workload.models[Task.GENERATION], tensor=tensor)))


def running_tokens(workload: Workload) -> float:
    """Return the mean tokens in the caches of a running sequence at a random moment, prompt + E[L^2] / (2 E[L]).

    A sequence has made half of its length on average, and long ones are met more often (renewal theory). An engine that
    runs many more sequences than its caches hold of these puts back as many as it finishes.
    """
    lengths = workload.completion_tokens.quantiles
    return workload.prompt_tokens.mean + sum(each * each for each in lengths) / (2 * sum(lengths))


def memory_for_tasks_bytes(gpu: GpuType) -> float:
    """Return the bytes of one device that tasks may use.

    It is nine tenths, less 1 GiB for the driver and the communicators of accelerators.
    """
    return 0.9 * gpu.memory_bytes - (0.0 if gpu.is_cpu else 2.0**30)
