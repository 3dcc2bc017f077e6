"""Turns leases into an engine's requests, and completions into scored trajectories.

Each lease stands alone: whatever an environment raises, and whatever the trainer would refuse (a reward beyond its
limit, a log-probability that is NaN), costs that one lease. What a lease yields depends only on the lease, the
completion and the environment. The functions run a person's environment and a tokenizer, so that they are called in a
thread, and never two at a time. Scoring itself happens in between (scoring.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from periplus.environment.environment import Environment, Item
from periplus.environment.problem_sets import set_and_index
from periplus.environment.prompts import PromptEncoder
from periplus.errors import RewardFailed, WireError, explained_error
from periplus.job.samples.reward_parts import reward_metadata
from periplus.values.reward_failure import failure_kind
from periplus.values.trajectory import (
    Purpose,
    SamplingParams,
    StopReason,
    Trajectory,
    TrajectoryLimits,
    read_only,
    token_ids,
    validate,
)
from rollout_worker.engines.engine import Completion, CompletionEnd, SampleRequest
from rollout_worker.engines.stop_strings import StopStrings
from rollout_worker.episodes.queue import QueuedLease
from rollout_worker.episodes.scoring import SampleScore

STOP_REASON_OF = {CompletionEnd.EOS: StopReason.EOS, CompletionEnd.STOP: StopReason.STOP}
"""The trajectory's stop reason for the ends of completions that ended by themselves; the others ran out of length."""

WHY_CHARACTERS = 500
"""Characters of an error's text that are reported; the rest is cut. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class FailedLease:
    """A lease for which this worker could not produce a sample, and why.

    `reward_failure` is the kind of failure if a reward function is at fault, else empty.
    """

    lease: QueuedLease
    why: str
    reward_failure: str = ""

    @classmethod
    def of(cls, lease: QueuedLease, error: Exception) -> "FailedLease":
        """Return the failure of a lease that `error` explains."""
        why = str(error) if isinstance(error, WireError) else explained_error(error)
        kind = failure_kind(error) if isinstance(error, RewardFailed) else ""
        return cls(lease, why[:WHY_CHARACTERS], kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSettings:
    """How the tokens of a completion are drawn (`SampleRequest` explains each). A temperature of 0 is greedy."""

    temperature: float
    max_new_tokens: int
    top_p: float = 1.0
    top_k: int = 0
    min_new_tokens: int = 0
    stop: StopStrings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """How samples are drawn in training and in evaluations, and what the trainer takes.

    `evaluation` is for held-out problems, and `sets` are for the job's evaluation sets, in their order.
    """

    seed: int
    training: DrawSettings
    evaluation: DrawSettings
    worker_id: str
    limits: TrajectoryLimits
    sets: tuple[DrawSettings, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEpisode:
    """A completion that was generated for a lease in `generation_s` seconds, and is not scored yet.

    After an episode of several turns `mask` is false at the environment's tokens, and `turn_rewards` has the reward of
    each turn; both are None otherwise.
    """

    lease: QueuedLease
    prompt_ids: tuple[int, ...]
    completion: Completion
    generation_s: float
    mask: tuple[bool, ...] | None = None
    turn_rewards: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a scorer sees of a finished episode: the problem, and the text of the completion.

    The text has no end tokens and no padding, and ends before the first stop string. `num_tokens` is the completion's
    length in tokens, those of its end token and its stop string included.
    """

    item: Item
    text: str
    num_tokens: int


class EpisodeDesk:
    """The environment and the tokenizer of a job, and what they make of leases and completions."""

    def __init__(self, encoder: PromptEncoder, environment: Environment, settings: EpisodeSettings) -> None:
        self._encoder, self._environment, self._settings = encoder, environment, settings

    def requests(self, leases: Sequence[QueuedLease]) -> tuple[SampleRequest | FailedLease, ...]:
        """Return the engine's request for each lease, in order, or why there is none."""
        made: list[SampleRequest | FailedLease] = []
        for lease in leases:
            try:
                made.append(self._request(lease))
            except Exception as error:  # the root of foreign code: a person's environment may raise anything
                made.append(FailedLease.of(lease, error))
        return tuple(made)

    def answer(self, finished: FinishedEpisode) -> Answer:
        """Return what is to be scored. Raises: anything that the environment or the tokenizer raises."""
        token_ids, stop = finished.completion.token_ids, self._draws(finished.lease).stop
        text = self._encoder.decoder.text(token_ids) if stop is None else stop.before(token_ids)
        num_tokens = len(token_ids)
        return Answer(item=self._environment.item(finished.lease.item), text=text, num_tokens=num_tokens)

    def trajectory(self, finished: FinishedEpisode, score: SampleScore) -> Trajectory:
        """Return the trajectory of a scored episode. Raises: CorruptFrame if the trainer would refuse it."""
        trajectory = self._trajectory(finished, score)
        # The trainer runs the same check, so what passes is not refused there.
        validate(trajectory, self._settings.limits)
        return trajectory

    def _request(self, lease: QueuedLease) -> SampleRequest:
        prompt = self._encoder.encode(self._environment.item(lease.item))
        draws = self._draws(lease)
        # Group and sample are the key of the randomness, so the result does not depend on what runs beside it.
        return SampleRequest(
            request_id=request_id_of(lease),
            prompt_ids=tuple(prompt),
            seed=self._settings.seed,
            group=lease.group,
            sample=lease.sample,
            temperature=draws.temperature,
            max_new_tokens=draws.max_new_tokens,
            greedy=draws.temperature == 0,
            top_p=draws.top_p,
            top_k=draws.top_k,
            min_new_tokens=draws.min_new_tokens,
            stop=draws.stop,
        )

    def _draws(self, lease: QueuedLease) -> DrawSettings:
        if lease.purpose is not Purpose.EVAL:
            return self._settings.training
        number, _ = set_and_index(lease.item)
        return self._settings.evaluation if number == 0 else self._settings.sets[number - 1]

    def _trajectory(self, finished: FinishedEpisode, score: SampleScore) -> Trajectory:
        lease, completion = finished.lease, finished.completion
        draws = self._draws(lease)
        # The policies sampled every token of a completion, apart from the answers of an environment.
        mask = (True,) * len(completion.token_ids) if finished.mask is None else finished.mask
        return Trajectory(
            lease_id=lease.lease_id,
            group=lease.group,
            sample=lease.sample,
            item=lease.item,
            purpose=lease.purpose,
            prompt_ids=token_ids(finished.prompt_ids),
            completion_ids=token_ids(completion.token_ids),
            logprobs=read_only(completion.logprobs, np.float32),
            mask=read_only(mask, np.bool_),
            policies=completion.runs,
            reward=score.reward,
            metadata=reward_metadata(score.parts, score.failures),
            stop_reason=STOP_REASON_OF.get(completion.end, StopReason.LENGTH),
            sampling=SamplingParams(temperature=draws.temperature, top_p=draws.top_p, top_k=draws.top_k),
            worker_id=self._settings.worker_id,
            generation_s=finished.generation_s,
        )


def request_id_of(lease: QueuedLease) -> str:
    """Return the id of a lease's request. Lease ids are unique within a fork."""
    return f"{lease.start_at.fork}.{lease.lease_id}"
