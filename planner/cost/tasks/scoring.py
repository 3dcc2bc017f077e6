"""Cost of scoring: one forward pass of the reference, reward or critic model over finished samples."""

from planner.cost.tasks.memory import SCORING_TOKENS
from planner.devices import collective, layer
from planner.problem.hardware import GpuType
from planner.problem.workload import Task, Workload


def sample_s(workload: Workload, task: Task, gpu: GpuType, tensor: int) -> float:
    """Return the seconds that one replica of `tensor` devices needs per sample for the given scoring task.

    A replica processes packs of `SCORING_TOKENS` tokens. A token attends to `tokens_around_a_token` tokens, as in
    training, because most tokens are in long samples. Only the reference model has an output head.
    """
    arch = workload.models[task]
    tokens = float(SCORING_TOKENS)
    one = layer.forward_s(gpu, arch, tensor=tensor, tokens=tokens, sequence=workload.tokens_around_a_token)
    # Two tensor-parallel all-reduces per layer, after attention and after the MLP.
    one += 2 * collective.machine_all_reduce_s(gpu, payload_bytes=2 * tokens * arch.hidden_size, num=tensor)
    head = layer.head_s(gpu, arch, tensor=tensor, tokens=tokens) if task is Task.REFERENCE else 0.0
    return (arch.num_layers * one + head) * workload.tokens_per_sample / tokens
