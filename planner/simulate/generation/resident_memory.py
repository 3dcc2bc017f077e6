"""Resident memory: bytes of a group's tasks that stay on each device while the tasks take turns.

What they leave is for key-value caches. The cost model counts the same bytes independently
(`planner.cost.tasks.memory`).
"""

from planner.answer.placement import Layout, Pool, Sharding
from planner.problem.architecture import HALF_PRECISION_BYTES
from planner.problem.workload import TRAINING, Task, Workload

_VALUES = (Task.REWARD, Task.CRITIC_INFERENCE, Task.CRITIC_TRAINING)
"""Tasks whose models end in one number per token and have no output head."""


def resident_bytes(workload: Workload, pool: Pool) -> float:
    """Return the bytes on one device of the pool, for all tasks of its group."""
    return sum(_of_task(workload, pool, task, layout) for task, layout in pool.layouts)


def _of_task(workload: Workload, pool: Pool, task: Task, layout: Layout) -> float:
    """Return the bytes of one task's weights, gradients and optimizer state on one device."""
    params = stage_params(workload, task, layout)
    if task not in TRAINING:
        return HALF_PRECISION_BYTES * params
    data = pool.num_units // layout.pipeline // layout.copies
    trained = params * trained_fraction(workload, task)
    # Deltas need a copy of the published weights.
    published = HALF_PRECISION_BYTES if workload.weights.is_delta and task is Task.ACTOR_TRAINING else 0
    # With LoRA the frozen weights stay, and the trained factors come on top.
    weights = HALF_PRECISION_BYTES * (params + trained if workload.lora_rank else params)
    gradients = HALF_PRECISION_BYTES * trained
    # The state per parameter includes weights and gradients in half precision, which are counted above.
    optimizer = (workload.train_state_bytes_per_param - 2 * HALF_PRECISION_BYTES + published) * trained
    match layout.sharding:
        case Sharding.NONE:
            return weights + gradients + optimizer
        case Sharding.OPTIMIZER:
            return weights + gradients + optimizer / data
        case Sharding.FULL:
            return (weights + gradients + optimizer) / data


def stage_params(workload: Workload, task: Task, layout: Layout) -> float:
    """Return the parameters on one device of the largest pipeline stage.

    Embedding and head are in different stages, unless there is only one.
    """
    arch = workload.models[task]
    # The largest stage has the rounded-up number of layers.
    layers = -(-arch.num_layers // layout.pipeline)
    has_both = layout.pipeline == 1 and not arch.tied_embeddings and task not in _VALUES
    ends = (2 if has_both else 1) * arch.embedding_params
    return (layers * arch.params_per_layer + ends) / layout.tensor


def whole_params(workload: Workload, task: Task) -> float:
    """Return the parameters of the whole model. Models that end in one number per token have no head."""
    arch = workload.models[task]
    return float(arch.num_params - (arch.embedding_params if task in _VALUES and not arch.tied_embeddings else 0))


def trained_fraction(workload: Workload, task: Task) -> float:
    """Return the fraction of a model's parameters that is trained.

    It is 1, or with LoRA that of two low-rank factors for each matrix of a layer.
    """
    if not workload.lora_rank:
        return 1.0
    arch = workload.models[task]
    query, key = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    # A matrix of m x n has factors of rank x (m + n) parameters: query, key and value as one, then the output
    # projection.
    attention = (arch.hidden_size + query + 2 * key) + (query + arch.hidden_size)
    # Each MLP matrix maps between hidden and intermediate size.
    mlp = arch.num_mlp_matrices * (arch.hidden_size + arch.intermediate_size)
    return min(1.0, workload.lora_rank * (attention + mlp) * arch.num_layers / arch.num_params)
