"""The dataflow of one reinforcement-learning job: its tasks, their models, and the work of each per step.

A step is one training iteration and makes one policy version. It consumes `prompts_per_step` groups of `group_size`
samples. A sample is one prompt with one completion.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from planner.problem.architecture import Architecture


class Task(StrEnum):
    """Task of the dataflow of reinforcement learning.

    PPO has all six tasks. GRPO has neither of the critic's two. A reward that is a rule runs on the hosts of the
    rollout workers and is no task.
    """

    GENERATION = "generation"
    REWARD = "reward"
    REFERENCE = "reference"
    CRITIC_INFERENCE = "critic_inference"
    ACTOR_TRAINING = "actor_training"
    CRITIC_TRAINING = "critic_training"


SCORING = (Task.REWARD, Task.REFERENCE, Task.CRITIC_INFERENCE)
"""Tasks that make one forward pass over finished samples."""
TRAINING = (Task.ACTOR_TRAINING, Task.CRITIC_TRAINING)
"""Tasks that update parameters."""
TASKS = tuple(Task)
"""All tasks in the order in which tuples of tasks are sorted."""

V = TypeVar("V")


def in_task_order(by_task: Mapping[Task, V]) -> tuple[tuple[Task, V], ...]:
    """Return pairs of a task and its value in the order of `Task`, whatever the order of the mapping."""
    return tuple((task, by_task[task]) for task in TASKS if task in by_task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Distribution of token counts, as its quantiles at (i + 1/2) / n for i = 0 .. n - 1, ascending."""

    quantiles: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean number of tokens."""
        return sum(self.quantiles) / len(self.quantiles)

    @property
    def largest(self) -> float:
        """Largest number of tokens."""
        return self.quantiles[-1]

    def at(self, p: float) -> float:
        """Return the quantile at `p` in [0, 1], interpolated linearly and constant beyond the given ones."""
        # Quantile i stands at (i + 0.5) / n.
        place = p * len(self.quantiles) - 0.5
        low = min(max(int(place // 1), 0), len(self.quantiles) - 1)
        high = min(low + 1, len(self.quantiles) - 1)
        share = min(max(place - low, 0.0), 1.0)
        return self.quantiles[low] + share * (self.quantiles[high] - self.quantiles[low])


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTransfer:
    """Size of one published version on a WAN link, in bytes per trained parameter.

    With LoRA the trained parameters are those of the adapters.
    """

    bytes_per_param: float
    """2 for full bf16 copies. For lossless deltas: density of changes x bits per change / 8."""
    is_delta: bool
    """Whether versions travel as deltas. Deltas need a copy of the published weights at both ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Models, batch sizes, token lengths and staleness bound of one job."""

    algorithm: str
    models: Mapping[Task, Architecture]
    """Model of each task. The keys are the job's tasks. Generation and actor training have the same model."""
    eta: int
    """Staleness bound: the largest number of versions by which a consumed token may lag; 0 is synchronous training."""
    prompts_per_step: int
    group_size: int
    prompt_tokens: Lengths
    completion_tokens: Lengths
    epochs_per_step: int = 1
    """Passes over the samples of a step (the inner epochs of PPO)."""
    minibatches_per_step: int = 1
    """Optimizer updates per epoch."""
    train_state_bytes_per_param: float = 16.0
    """Bytes per trained parameter that stay resident: bf16 weights and gradients, float32 master weights and two
    moments."""
    gradient_bytes_per_param: float = 2.0
    """Bytes of the gradient of one trained parameter on a link, where devices sum it: 2 in bf16, 4 in float32."""
    lora_rank: int = 0
    """Rank of the LoRA adapters; 0 if all parameters are trained."""
    weights: WeightTransfer = WeightTransfer(bytes_per_param=2.0, is_delta=False)
    trajectory_bytes_per_token: float = 5.0
    """Bytes per token of a finished sample that travel to the trainer's region."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Tasks of the job, in the order of `Task`."""
        return tuple(task for task in TASKS if task in self.models)

    @property
    def samples_per_step(self) -> int:
        """Number of samples that one step consumes."""
        return self.prompts_per_step * self.group_size

    @property
    def tokens_per_sample(self) -> float:
        """Mean number of tokens of a sample, prompt included."""
        return self.prompt_tokens.mean + self.completion_tokens.mean

    @property
    def tokens_around_a_token(self) -> float:
        """Mean length of the sample that a random token belongs to, E[S^2] / E[S].

        Attention within samples costs each token in proportion to this length. Prompt and completion lengths are taken
        as independent.
        """
        lengths = (self.prompt_tokens.quantiles, self.completion_tokens.quantiles)
        # E[S^2] / E[S] = E[S] + Var[S] / E[S], and variances of independent lengths add up.
        variances = (sum(each * each for each in one) / len(one) - (sum(one) / len(one)) ** 2 for one in lengths)
        return self.tokens_per_sample + sum(variances) / self.tokens_per_sample
