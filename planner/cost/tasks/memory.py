"""Memory of each task on one device: bytes that stay resident, and bytes that are needed only while the task runs.

The tasks of a group stay resident together and run one after another. So the sum of the resident bytes plus the largest
transient bytes must be within `usable_bytes`. Model states follow ZeRO's accounting; activations are counted by
`planner.devices.memory`. If versions are sent as deltas, the trainer also keeps a copy of the last published version (2
bytes per parameter, sharded like the optimizer). The versions that a region keeps for its engines are in the host's
memory (`host_bytes`), not on devices.
"""

import numpy as np

from planner.answer.placement import Layout
from planner.cost.tasks.layer_cuts import FULL, OPTIMIZER, Cuts, FloatArray, IntArray, of_layout
from planner.devices import memory as device_memory
from planner.problem.architecture import HALF_PRECISION_BYTES, Architecture
from planner.problem.hardware import GpuType
from planner.problem.workload import TRAINING, Task, Workload

USABLE_FRACTION = 0.9
"""Fraction of a device's memory that can be used; the rest is lost to fragmentation. Source: 0.9 is vLLM's default
`gpu_memory_utilization`."""
RUNTIME_BYTES = 1 << 30
"""Bytes of the driver context, communication buffers and workspace on each GPU; a CPU needs none. Chosen by hand."""
SCORING_TOKENS = 4096
"""Tokens that a scoring replica processes in one forward pass. Chosen by hand."""
_WITH_HEAD = (Task.GENERATION, Task.REFERENCE, Task.ACTOR_TRAINING)
"""Tasks whose models have an output head. Reward and critic models end in one number per token instead."""


def usable_bytes(gpu: GpuType) -> float:
    """Return the bytes of one device that a group's tasks may use together."""
    return gpu.memory_bytes * USABLE_FRACTION - (0 if gpu.is_cpu else RUNTIME_BYTES)


def whole_params(arch: Architecture, task: Task) -> float:
    """Return the number of parameters of the whole model in the role of this task, with or without an output head."""
    head = 0 if arch.tied_embeddings or task in _WITH_HEAD else arch.embedding_params
    return float(arch.num_params - head)


def stage_params(arch: Architecture, task: Task, *, tensor: int, pipeline: IntArray) -> FloatArray:
    """Return the parameters on one device of the largest pipeline stage, with the shape of `pipeline`.

    The embedding is in the first stage and the head in the last one, so with pipelining a stage has at most one of
    them.
    """
    layers = -(-arch.num_layers // pipeline)
    both = not arch.tied_embeddings and task in _WITH_HEAD
    ends = np.where(pipeline > 1, 1, 2 if both else 1) * arch.embedding_params
    params: FloatArray = (layers * arch.params_per_layer + ends) / tensor
    return params


def trained_fraction(workload: Workload, arch: Architecture) -> float:
    """Return the fraction of the parameters that are trained: 1, or with LoRA the fraction that the adapters are."""
    if workload.lora_rank == 0:
        return 1.0
    # Each adapted matrix has two factors of rank r. Together they have r x (inputs + outputs) parameters.
    width = arch.head_dim * (arch.num_heads + 2 * arch.num_kv_heads)
    ends = arch.hidden_size + width + arch.head_dim * arch.num_heads + arch.hidden_size
    ends += arch.num_mlp_matrices * (arch.hidden_size + arch.intermediate_size)
    return min(1.0, workload.lora_rank * ends * arch.num_layers / arch.num_params)


def served_bytes(workload: Workload, task: Task, tensor: int) -> float:
    """Return the resident bytes of a task that does not train, on one of `tensor` devices: its weights."""
    return HALF_PRECISION_BYTES * float(
        stage_params(workload.models[task], task, tensor=tensor, pipeline=np.array([1]))[0]
    )


def trained_bytes(workload: Workload, task: Task, cuts: Cuts) -> FloatArray:
    """Return the resident bytes on one device of a task that trains, `[num_rows of cuts]`.

    The sum is weights, gradients and optimizer state. Full sharding divides all of them by the number of pipelines that
    share a copy, optimizer sharding only the optimizer state.
    """
    arch = workload.models[task]
    params = stage_params(arch, task, tensor=cuts.tensor, pipeline=cuts.pipeline)
    fraction = trained_fraction(workload, arch)
    published = HALF_PRECISION_BYTES if workload.weights.is_delta and task is Task.ACTOR_TRAINING else 0
    adapters = fraction if workload.lora_rank else 0.0
    weights = HALF_PRECISION_BYTES * params * (1 + adapters)
    gradients = HALF_PRECISION_BYTES * params * fraction
    # `train_state_bytes_per_param` includes 2 bytes of weights and 2 of gradients, which are counted apart.
    optimizer = (workload.train_state_bytes_per_param - 2 * HALF_PRECISION_BYTES + published) * params * fraction
    is_full = cuts.sharding == FULL
    resident: FloatArray = (weights + gradients) / np.where(is_full, cuts.shards, 1)
    return resident + optimizer / np.where(is_full | (cuts.sharding == OPTIMIZER), cuts.shards, 1)


def scoring_bytes(workload: Workload, task: Task, tensor: int) -> float:
    """Return the transient bytes on one device while the task scores one pack of `SCORING_TOKENS` tokens."""
    arch = workload.models[task]
    logits = 4 * SCORING_TOKENS * arch.vocab_size / tensor if task is Task.REFERENCE else 0.0
    return logits + 8 * SCORING_TOKENS * (arch.hidden_size + arch.mlp_width / tensor)


def training_bytes(workload: Workload, task: Task, cuts: Cuts) -> FloatArray:
    """Return the transient bytes on one device of the first stage while the task trains, `[num_rows of cuts]`.

    Under 1F1B the first stage keeps the activations of one micro-batch per stage. The longest samples must fit.
    """
    arch = workload.models[task]
    tokens = cuts.micro_batch * (workload.prompt_tokens.largest + workload.completion_tokens.largest)
    layers = -(-arch.num_layers // cuts.pipeline)
    # Activation bytes per token and layer: all of them, or with recomputation only each layer's input.
    a_token = device_memory.activation_bytes_per_layer(arch, tensor=cuts.tensor, tokens=1.0, recompute=False)
    input_only = device_memory.activation_bytes_per_layer(arch, tensor=cuts.tensor, tokens=1.0, recompute=True)
    kept = cuts.pipeline * layers * np.where(cuts.recompute, input_only, a_token)
    again = np.where(cuts.recompute, a_token, 0.0)
    logits = device_memory.logits_bytes(arch, tensor=cuts.tensor, tokens=1.0) if task is Task.ACTOR_TRAINING else 0.0
    # Full sharding holds one layer unsharded at a time: 4 bytes per parameter for its weights and gradients.
    gathered = np.where(cuts.sharding == FULL, 2 * HALF_PRECISION_BYTES * arch.params_per_layer / cuts.tensor, 0.0)
    transient: FloatArray = tokens * (kept + again + logits) + gathered
    return transient


def sequence_bytes(workload: Workload, tensor: int, context: float) -> float:
    """Return the KV-cache bytes of one sequence of `context` tokens on each device of a replica."""
    arch = workload.models[Task.GENERATION]
    return device_memory.kv_bytes_per_token(arch, tensor=tensor) * context


def host_bytes(workload: Workload) -> float:
    """Return the bytes that a host needs for the versions of the actor that it keeps for generation.

    It keeps the newest version and, if versions are deltas, the base that a delta is applied to. With LoRA both are
    adapters only; the frozen base weights are kept once beside them, because engines that start or restart load from
    there.
    """
    arch = workload.models[Task.GENERATION]
    trained = arch.num_params * trained_fraction(workload, arch)
    kept = trained * (workload.weights.bytes_per_param + (HALF_PRECISION_BYTES if workload.weights.is_delta else 0))
    return kept + (HALF_PRECISION_BYTES * arch.num_params if workload.lora_rank else 0.0)


def resident_bytes(workload: Workload, task: Task, layout: Layout, data: int) -> float:
    """Return the resident bytes on one device of one task with one layout; `data` is the number of pipelines."""
    if task not in TRAINING:
        return served_bytes(workload, task, layout.tensor)
    return float(trained_bytes(workload, task, of_layout(layout, data * layout.pipeline))[0])


def transient_bytes(workload: Workload, task: Task, layout: Layout) -> float:
    """Return the bytes on one device that one task needs only while it runs, for one layout.

    Generation returns 0: its KV caches take whatever is left, which `generation.Replica.slots` counts.
    """
    if task is Task.GENERATION:
        return 0.0
    if task not in TRAINING:
        return scoring_bytes(workload, task, layout.tensor)
    return float(training_bytes(workload, task, of_layout(layout, layout.pipeline))[0])
