"""Samples for the trainer's tests."""

from collections.abc import Sequence

import numpy as np

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, StopReason
from trainer.learning.batch import Sample

CONSUMER = Policy(0, 5)
"""The policy that the tests' training steps start from."""


def sample(
    group: int,
    number: int,
    prompt: Sequence[int],
    completion: Sequence[int],
    *,
    reward: float = 0.0,
    logprobs: Sequence[float] | None = None,
    mask: Sequence[int] | None = None,
    policies: tuple[PolicyRun, ...] | None = None,
    stop_reason: StopReason = StopReason.EOS,
) -> Sample:
    """Return a sample. By default log-probabilities are 0 and the consumer sampled every token."""
    count = len(completion)
    return Sample(
        group=group,
        sample=number,
        prompt_ids=np.array(prompt, np.int32),
        completion_ids=np.array(completion, np.int32),
        behaviour_logprobs=np.zeros(count, np.float32) if logprobs is None else np.array(logprobs, np.float32),
        mask=np.ones(count, np.bool_) if mask is None else np.array(mask, np.bool_),
        policies=(PolicyRun(CONSUMER, count),) if policies is None else policies,
        reward=reward,
        stop_reason=stop_reason,
    )
