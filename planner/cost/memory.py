"""Bytes of each task on one device: what stays, and what is there while the task runs.

A group's tasks stay resident together and run by turns: the sum of what stays and the largest of what comes and goes
must fit. Deltas cost the trainer a copy of what it published last (2 bytes a parameter, sharded like the optimizer);
what a region's host keeps of versions is in the host's memory.
"""

import numpy as np

from planner.answer.placement import Layout
from planner.cost.cuts import FULL, OPTIMIZER, Cuts, FloatArray, IntArray, of_layout
from planner.device import memory as device_memory
from planner.question.architecture import Architecture
from planner.question.hardware import GpuType
from planner.question.workload import TRAINING, Task, Workload

USABLE_FRACTION = 0.9
"""Of a device's memory; the rest is lost to fragmentation. Source: vLLM's default `gpu_memory_utilization` is 0.9."""
RUNTIME_BYTES = 1 << 30
"""Driver context, communication buffers and workspace on each GPU. A CPU has none of them."""
SCORING_TOKENS = 4096
"""Tokens that a scoring replica takes at once."""
_HALF = 2
_WITH_HEAD = (Task.GENERATION, Task.REFERENCE, Task.ACTOR_TRAINING)
"""The others end in a single number a token: their models have no output head."""


def usable_bytes(gpu: GpuType) -> float:
    """What a group's tasks may use of one device."""
    return gpu.memory_bytes * USABLE_FRACTION - (0 if gpu.is_cpu else RUNTIME_BYTES)


def whole_params(arch: Architecture, task: Task) -> float:
    """Of the whole model in that role."""
    head = 0 if arch.tied_embeddings or task in _WITH_HEAD else arch.embedding_params
    return float(arch.num_params - head)


def stage_params(arch: Architecture, task: Task, *, tensor: int, pipeline: IntArray) -> FloatArray:
    """Parameters on one device of the fullest stage; embedding and head are at a pipeline's two ends."""
    layers = -(-arch.num_layers // pipeline)
    both = not arch.tied_embeddings and task in _WITH_HEAD
    ends = np.where(pipeline > 1, 1, 2 if both else 1) * arch.embedding_params
    params: FloatArray = (layers * arch.params_per_layer + ends) / tensor
    return params


def trained_fraction(workload: Workload, arch: Architecture) -> float:
    """Of the parameters: 1, or that of the adapters (two factors of each matrix of a layer)."""
    if workload.lora_rank == 0:
        return 1.0
    width = arch.head_dim * (arch.num_heads + 2 * arch.num_kv_heads)
    ends = arch.hidden_size + width + arch.head_dim * arch.num_heads + arch.hidden_size
    ends += arch.num_mlp_matrices * (arch.hidden_size + arch.intermediate_size)
    return min(1.0, workload.lora_rank * ends * arch.num_layers / arch.num_params)


def served_bytes(workload: Workload, task: Task, tensor: int) -> float:
    """Resident on one device of a task that does not train."""
    return _HALF * float(stage_params(workload.models[task], task, tensor=tensor, pipeline=np.array([1]))[0])


def trained_bytes(workload: Workload, task: Task, cuts: Cuts) -> FloatArray:
    """Resident on one device of a task that trains."""
    arch = workload.models[task]
    params = stage_params(arch, task, tensor=cuts.tensor, pipeline=cuts.pipeline)
    fraction = trained_fraction(workload, arch)
    published = _HALF if workload.weights.is_delta and task is Task.ACTOR_TRAINING else 0
    adapters = fraction if workload.lora_rank else 0.0
    weights = _HALF * params * (1 + adapters)
    gradients = _HALF * params * fraction
    optimizer = (workload.train_state_bytes_per_param - 2 * _HALF + published) * params * fraction
    is_full = cuts.sharding == FULL
    resident: FloatArray = (weights + gradients) / np.where(is_full, cuts.data, 1)
    return resident + optimizer / np.where(is_full | (cuts.sharding == OPTIMIZER), cuts.data, 1)


def scoring_bytes(workload: Workload, task: Task, tensor: int) -> float:
    """On one device while the task scores."""
    arch = workload.models[task]
    logits = 4 * SCORING_TOKENS * arch.vocab_size / tensor if task is Task.REFERENCE else 0.0
    return logits + 8 * SCORING_TOKENS * (arch.hidden_size + arch.intermediate_size / tensor)


def training_bytes(workload: Workload, task: Task, cuts: Cuts) -> FloatArray:
    """On one device of the first stage while the task trains: it keeps a micro-batch for every stage."""
    arch = workload.models[task]
    tokens = cuts.micro_batch * (workload.prompt_tokens.largest + workload.completion_tokens.largest)
    layers = -(-arch.num_layers // cuts.pipeline)
    a_token = device_memory.activation_bytes_per_layer(arch, tensor=cuts.tensor, tokens=1.0, recompute=False)
    input_only = device_memory.activation_bytes_per_layer(arch, tensor=cuts.tensor, tokens=1.0, recompute=True)
    kept = cuts.pipeline * layers * np.where(cuts.recompute, input_only, a_token)
    again = np.where(cuts.recompute, a_token, 0.0)
    logits = device_memory.logits_bytes(arch, tensor=cuts.tensor, tokens=1.0) if task is Task.ACTOR_TRAINING else 0.0
    gathered = np.where(cuts.sharding == FULL, 2 * _HALF * arch.params_per_layer / cuts.tensor, 0.0)
    transient: FloatArray = tokens * (kept + again + logits) + gathered
    return transient


def sequence_bytes(workload: Workload, tensor: int, context: float) -> float:
    """Of the cache of one sequence of so many tokens, on each device of a replica."""
    arch = workload.models[Task.GENERATION]
    return device_memory.kv_bytes_per_token(arch, tensor=tensor) * context


def host_bytes(workload: Workload) -> float:
    """In the memory of each host that keeps versions for generation: the newest, and what a delta is applied to.

    Engines that start or fail are loaded from there: so with LoRA the weights beneath the adapters are there, once.
    They never change; versions, deltas and what these are applied to are of the adapters alone.
    """
    arch = workload.models[Task.GENERATION]
    trained = arch.num_params * trained_fraction(workload, arch)
    kept = trained * (workload.weights.bytes_per_param + (_HALF if workload.weights.is_delta else 0))
    return kept + (_HALF * arch.num_params if workload.lora_rank else 0.0)


def resident_bytes(workload: Workload, task: Task, layout: Layout, data: int) -> float:
    """On one device, whatever runs, of one layout."""
    if task not in TRAINING:
        return served_bytes(workload, task, layout.tensor)
    return float(trained_bytes(workload, task, of_layout(layout, data * layout.pipeline))[0])


def transient_bytes(workload: Workload, task: Task, layout: Layout) -> float:
    """On one device while the task runs, of one layout; generation's caches are counted by `generation.Replica`."""
    if task is Task.GENERATION:
        return 0.0
    if task not in TRAINING:
        return scoring_bytes(workload, task, layout.tensor)
    return float(training_bytes(workload, task, of_layout(layout, layout.pipeline))[0])
