"""The dataflow of one reinforcement-learning job: its tasks, their models, how much of each a step needs.

A step (one training iteration, one policy version) consumes `prompts_per_step` groups of `group_size` samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from planner.question.architecture import Architecture


class Task(StrEnum):
    """PPO has all six; GRPO neither of the critic's two; a rule for the reward runs on the workers' hosts: no task."""

    GENERATION = "generation"
    REWARD = "reward"
    REFERENCE = "reference"
    CRITIC_INFERENCE = "critic_inference"
    ACTOR_TRAINING = "actor_training"
    CRITIC_TRAINING = "critic_training"


SCORING = (Task.REWARD, Task.REFERENCE, Task.CRITIC_INFERENCE)
"""One forward pass over finished samples."""
TRAINING = (Task.ACTOR_TRAINING, Task.CRITIC_TRAINING)
TASKS = tuple(Task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of token counts: its quantiles at (i + 1/2) / n, ascending."""

    quantiles: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.quantiles) / len(self.quantiles)

    @property
    def largest(self) -> float:
        return self.quantiles[-1]

    def at(self, p: float) -> float:
        """The quantile at `p` in [0, 1], linear between the given ones, flat beyond them."""
        place = p * len(self.quantiles) - 0.5
        low = min(max(int(place // 1), 0), len(self.quantiles) - 1)
        high = min(low + 1, len(self.quantiles) - 1)
        share = min(max(place - low, 0.0), 1.0)
        return self.quantiles[low] + share * (self.quantiles[high] - self.quantiles[low])


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTransfer:
    """What one new version costs on a WAN link, bytes a parameter that is trained: with LoRA, of the adapters."""

    bytes_per_param: float
    """2 for full bf16 copies; density x bits a change / 8 for lossless deltas."""
    is_delta: bool
    """Deltas need a copy of the published weights at both ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one job asks of a fleet."""

    algorithm: str
    models: Mapping[Task, Architecture]
    """Its keys are the job's tasks. Generation and actor training have the same model."""
    eta: int
    """The staleness bound; 0 is synchronous."""
    prompts_per_step: int
    group_size: int
    prompt_tokens: Lengths
    completion_tokens: Lengths
    epochs_per_step: int = 1
    """Passes over a step's samples (PPO's inner epochs)."""
    minibatches_per_step: int = 1
    """Optimizer updates an epoch."""
    train_state_bytes_per_param: float = 16.0
    """Resident beside activations: bf16 weights and gradients, float32 master and two moments."""
    lora_rank: int = 0
    """0: all parameters are trained."""
    weights: WeightTransfer = WeightTransfer(bytes_per_param=2.0, is_delta=False)
    trajectory_bytes_per_token: float = 5.0

    @property
    def tasks(self) -> tuple[Task, ...]:
        """In the order of `Task`."""
        return tuple(task for task in TASKS if task in self.models)

    @property
    def samples_per_step(self) -> int:
        return self.prompts_per_step * self.group_size

    @property
    def tokens_per_sample(self) -> float:
        return self.prompt_tokens.mean + self.completion_tokens.mean

    @property
    def tokens_around_a_token(self) -> float:
        """Of the sample that a token is in: E[S^2] / E[S]. Attention within samples costs as much a token."""
        lengths = (self.prompt_tokens.quantiles, self.completion_tokens.quantiles)
        variances = (sum(each * each for each in one) / len(one) - (sum(one) / len(one)) ** 2 for one in lengths)
        return self.tokens_per_sample + sum(variances) / self.tokens_per_sample
