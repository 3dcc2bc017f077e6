"""Workloads of two published planners, as far as they are published. What is not published is a named guess.

HetRL: Qwen with 4B, 8B and 14B parameters, PPO and GRPO, synchronous and asynchronous, prompts and responses of at most
1024 tokens, 8 responses per prompt, a global batch of 1024, all roles of the same size. AReaL-Hex: reasoning models
with 1.5B, 7B and 14B parameters on mathematics. Neither publishes the lengths of completions: the distributions here
are those of reasoning models' answers to competition problems (github zzli2022/TLDR, evaluation logs).
"""

from dataclasses import dataclass

from planner.devices.catalogue import architecture
from planner.problem import lengths
from planner.problem.workload import Task, WeightTransfer, Workload

HETRL_MODELS = ("Qwen3-4B", "Qwen3-8B", "Qwen3-14B")
"""Models of HetRL's experiments."""
AREAL_HEX_MODELS = ("DeepSeek-R1-Distill-Qwen-1.5B", "DeepSeek-R1-Distill-Qwen-7B", "DeepSeek-R1-Distill-Qwen-14B")
"""Models of AReaL-Hex's experiments."""
ALGORITHMS = ("ppo", "grpo")
"""Algorithms of HetRL's experiments."""
_PPO = tuple(Task)
_GRPO = (Task.GENERATION, Task.REWARD, Task.REFERENCE, Task.ACTOR_TRAINING)
"""Tasks of HetRL's PPO and GRPO jobs. Their reward is a model, so it is a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A workload, with a sentence for each figure that is not published."""

    workload: Workload
    guesses: tuple[str, ...]


def hetrl_workload(model: str, algorithm: str, *, is_async: bool) -> Setting:
    """Return HetRL's job; `algorithm` is ppo (six tasks) or grpo (four tasks)."""
    shape = architecture(model)
    workload = Workload(
        algorithm=algorithm,
        models=dict.fromkeys(_PPO if algorithm == "ppo" else _GRPO, shape),
        eta=1 if is_async else 0,
        prompts_per_step=128,
        group_size=8,
        prompt_tokens=lengths.lognormal(median_tokens=100, sigma=0.6, cap_tokens=1024),
        completion_tokens=lengths.lognormal(median_tokens=382, sigma=1.09, cap_tokens=1024),
    )
    guesses = (
        "global batch: 1024 is taken as samples, so 128 prompts",
        "lengths: lognormal, median prompts of 100 tokens (GSM8K's) and completions of 382 (MATH-500's), cut at 1024",
        "asynchronous: a staleness bound of 1; one optimizer update a step",
        "reward: a model of the actor's size, as all roles have",
    )
    return Setting(workload=workload, guesses=guesses)


def areal_hex_workload(model: str, *, eta: int = 4) -> Setting:
    """Return AReaL-Hex's job: GRPO with rewards by rule and no reference, so only generation and training."""
    shape = architecture(model)
    workload = Workload(
        algorithm="grpo",
        models={Task.GENERATION: shape, Task.ACTOR_TRAINING: shape},
        eta=eta,
        prompts_per_step=64,
        group_size=16,
        prompt_tokens=lengths.lognormal(median_tokens=100, sigma=0.6, cap_tokens=1024),
        completion_tokens=lengths.lognormal(median_tokens=4000, sigma=0.8, cap_tokens=16384),
        minibatches_per_step=4,
        weights=WeightTransfer(bytes_per_param=2.0, is_delta=False),
    )
    guesses = (
        "batch: 64 prompts of 16 samples; four optimizer updates a step; a staleness bound of 4",
        "lengths: lognormal, completions of 4000 tokens in the median, cut at 16384: plain reasoning models answer at "
        "more length than the shortened ones that were measured",
        "tasks: rewards are rules and no reference is kept",
    )
    return Setting(workload=workload, guesses=guesses)
