"""Scoring: one forward pass of the reference, reward or critic model over finished samples."""

from planner.cost.memory import SCORING_TOKENS
from planner.device import collective, layer
from planner.question.hardware import GpuType
from planner.question.workload import Task, Workload


def sample_s(workload: Workload, task: Task, gpu: GpuType, tensor: int) -> float:
    """Seconds a sample of one replica, which takes SCORING_TOKENS tokens at once; as in training, attention of a token
    is to the sample around it, and more tokens are in long ones."""
    arch = workload.models[task]
    tokens = float(SCORING_TOKENS)
    one = layer.forward_s(gpu, arch, tensor=tensor, tokens=tokens, sequence=workload.tokens_around_a_token)
    one += 2 * collective.machine_all_reduce_s(gpu, payload_bytes=2 * tokens * arch.hidden_size, num=tensor)
    head = layer.head_s(gpu, arch, tensor=tensor, tokens=tokens) if task is Task.REFERENCE else 0.0
    return (arch.num_layers * one + head) * workload.tokens_per_sample / tokens
