"""Turns a batch of leases into trajectories: build the prompts, generate, score.

All of a batch is generated with one policy. Apart from the engine it calls, the module is pure: what a batch yields
depends only on the leases, the policy, the seed and the environment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from periplus.environment.environment import Environment
from periplus.environment.job_environment import encode_prompt
from periplus.values.policy import Policy
from periplus.values.trajectory import (
    PolicyRun,
    Purpose,
    SamplingParams,
    StopReason,
    Trajectory,
    read_only,
    token_ids,
)
from rollout_worker.engines.engine import Completion, Engine, SampleRequest
from rollout_worker.episodes.queue import QueuedLease


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """How samples are drawn. Evaluation samples are greedy, whatever the temperature."""

    seed: int
    temperature: float
    max_new_tokens: int
    worker_id: str


def sample_batch(
    leases: Sequence[QueuedLease],
    engine: Engine,
    tokenizer: Any,
    environment: Environment,
    policy: Policy,
    settings: EpisodeSettings,
) -> tuple[Trajectory, ...]:
    """Return one trajectory for each lease, in order, all generated with `policy`.

    `generation_s` is left at 0, because only the caller has a clock.
    """
    prompts = [encode_prompt(tokenizer, environment.item(lease.item).prompt) for lease in leases]
    # Group and sample are the key of the randomness, so the result does not depend on how leases were batched.
    requests = [
        SampleRequest(
            prompt_ids=prompt,
            group=lease.group,
            sample=lease.sample,
            temperature=settings.temperature,
            max_new_tokens=settings.max_new_tokens,
            greedy=lease.purpose is Purpose.EVAL,
        )
        for lease, prompt in zip(leases, prompts, strict=True)
    ]
    completions = engine.generate(requests, seed=settings.seed, version=policy.version)
    return tuple(
        _trajectory(lease, prompt, completion, tokenizer, environment, policy, settings)
        for lease, prompt, completion in zip(leases, prompts, completions, strict=True)
    )


def _trajectory(
    lease: QueuedLease,
    prompt: tuple[int, ...],
    completion: Completion,
    tokenizer: Any,
    environment: Environment,
    policy: Policy,
    settings: EpisodeSettings,
) -> Trajectory:
    text = tokenizer.decode(completion.token_ids, skip_special_tokens=True)
    num_tokens = len(completion.token_ids)
    greedy = lease.purpose is Purpose.EVAL
    # The environment scores the text without special tokens. The policy sampled every token of the completion, so the
    # mask is true throughout. Weights change only between batches, so there is one policy.
    return Trajectory(
        lease_id=lease.lease_id,
        group=lease.group,
        sample=lease.sample,
        item=lease.item,
        purpose=lease.purpose,
        prompt_ids=token_ids(prompt),
        completion_ids=token_ids(completion.token_ids),
        logprobs=read_only(completion.logprobs, np.float32),
        mask=read_only((True,) * num_tokens, np.bool_),
        policies=(PolicyRun(policy, num_tokens),),
        reward=float(environment.score(lease.item, text)),
        stop_reason=StopReason(completion.stop_reason.value),
        sampling=SamplingParams(temperature=0.0 if greedy else settings.temperature),
        worker_id=settings.worker_id,
        generation_s=0.0,
    )
