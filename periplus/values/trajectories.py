"""Many trajectories as columns: the form of a decoded frame in memory, and the validation of all of them at once.

The tokens of all samples lie end to end in one array for each kind of value. `Rows` has a row for each sample: its
number of tokens, the indices of its prompt, worker and metadata, and its scalar values. `views` cuts the arrays into
`Trajectory` values without copying. `validate_all` accepts exactly those frames of which
`periplus.values.trajectory.validate` accepts every view, but it checks the tokens of a whole frame at once. A frame has
few rows, so the columns of `Rows` are plain tuples, which are faster here than numpy.

The code that builds `Trajectories` must check that counts and indices fit together; only values are checked here.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from periplus.errors import CorruptFrame
from periplus.values.policy import Policy
from periplus.values.trajectory import (
    LOGPROB_TOLERANCE,
    MAX_WORKER_ID_BYTES,
    PURPOSES,
    STOP_REASONS,
    PolicyRun,
    SamplingParams,
    Trajectory,
    TrajectoryLimits,
    is_metadata,
    is_reward,
    reward_of_wire,
    validate,
)

LEAST_FINITE_BITS = -(1 << 23) - 1
"""Largest int32 bit pattern of a finite negative float32.

As int32, -0.0 is the smallest pattern, and the pattern grows with the magnitude; -inf and negative NaNs are above this.
"""


class Rows(NamedTuple):
    """The scalar values of the samples as columns, one entry per sample.

    The last five columns are indices: `prompt` into the prompts, `worker` and `metadata` into the texts, `purpose` into
    PURPOSES, and `stop_reason` into STOP_REASONS.
    """

    lease_id: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    item: tuple[int, ...] = ()
    sample: tuple[int, ...] = ()
    num_ids: tuple[int, ...] = ()
    num_runs: tuple[int, ...] = ()
    top_k: tuple[int, ...] = ()
    reward: tuple[float, ...] = ()
    temperature: tuple[float, ...] = ()
    top_p: tuple[float, ...] = ()
    generation_s: tuple[float, ...] = ()
    prompt: tuple[int, ...] = ()
    worker: tuple[int, ...] = ()
    metadata: tuple[int, ...] = ()
    purpose: tuple[int, ...] = ()
    stop_reason: tuple[int, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[tuple[Any, ...]]) -> "Rows":
        """Return the columns of rows, which are tuples in the order of the fields."""
        return cls(*zip(*rows, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectories:
    """The samples of one frame. All arrays are read-only.

    *Shapes*: T is the number of completion tokens of all rows, which lie end to end.
    """

    rows: Rows
    runs: Sequence[tuple[int, int, int, bool]]  # policy runs of all rows, end to end: fork, version, tokens, kept_kv
    prompt_lengths: Sequence[int]
    ids: npt.NDArray[np.int32]  # the ids of all prompts, then those of all completions [T]
    logprobs: npt.NDArray[np.float32]  # [T]
    mask: npt.NDArray[np.bool_]  # [T]
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.rows.lease_id)

    def views(self) -> tuple[Trajectory, ...]:
        """Return one trajectory for each row, in order. Its arrays are views of the columns."""
        views, at, runs_at = [], 0, 0
        # `ids` has the prompts' ids first; the completions' are the last ones, as many as there are mask values.
        completion_ids, logprobs, mask = self.ids[len(self.ids) - len(self.mask) :], self.logprobs, self.mask
        prompts = [self.ids[a:b] for a, b in pairwise(accumulate(self.prompt_lengths, initial=0))]
        sampled_with: dict[tuple[float, float, int], SamplingParams] = {}  # usually one for all rows
        for (
            lease_id,
            group,
            item,
            sample,
            num_ids,
            num_runs,
            top_k,
            reward,
            temperature,
            top_p,
            generation_s,
            prompt,
            worker,
            metadata,
            purpose,
            stop_reason,
        ) in zip(*self.rows, strict=True):
            drawn = (temperature, top_p, top_k)
            if drawn not in sampled_with:
                sampled_with[drawn] = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)
            end, runs_end = at + num_ids, runs_at + num_runs
            runs = self.runs[runs_at:runs_end]
            policies = tuple([PolicyRun(Policy(fork, version), n, kept) for fork, version, n, kept in runs])
            views.append(
                Trajectory(
                    lease_id=lease_id,
                    group=group,
                    sample=sample,
                    item=item,
                    purpose=PURPOSES[purpose],
                    prompt_ids=prompts[prompt],
                    completion_ids=completion_ids[at:end],
                    logprobs=logprobs[at:end],
                    mask=mask[at:end],
                    policies=policies,
                    reward=reward_of_wire(reward),
                    stop_reason=STOP_REASONS[stop_reason],
                    sampling=sampled_with[drawn],
                    metadata=self.texts[metadata],
                    worker_id=self.texts[worker],
                    generation_s=generation_s,
                )
            )
            at, runs_at = end, runs_end
        return tuple(views)


def validate_all(trajectories: Trajectories, limits: TrajectoryLimits) -> None:
    """Check every row as `validate` does, and also the prompts that no row uses.

    Raises: CorruptFrame, with the message of `validate` for the first row that is not valid.
    """
    t = trajectories
    if _tokens_are_fit(t, limits) and _rows_are_fit(t, limits) and _runs_are_fit(t):
        return
    for trajectory in t.views():
        validate(trajectory, limits)
    raise CorruptFrame("a prompt that no sample has holds ids beyond the vocabulary; drop the frame")


def _tokens_are_fit(t: Trajectories, limits: TrajectoryLimits) -> bool:
    if len(t.ids) and t.ids.view(np.uint32).max() >= limits.vocab_size:  # as uint32 a negative id is a large one
        return False
    # Fast path in one pass: all log-probabilities are finite and negative, so that no token may be context.
    if not len(t.logprobs) or t.logprobs.view(np.int32).max() <= LEAST_FINITE_BITS:
        return bool(t.mask.all())
    # If any value is NaN, then min and max are NaN, and both comparisons are false.
    if not (t.logprobs.min() > -math.inf and t.logprobs.max() <= LOGPROB_TOLERANCE):
        return False
    return bool(t.mask.all()) or not t.logprobs.view(np.int32)[~t.mask].any()


def _rows_are_fit(t: Trajectories, limits: TrajectoryLimits) -> bool:
    rows = t.rows
    if not len(t):
        return True
    # One pass of a built-in function for each rule, rather than a check of each row.
    return (
        max(rows.num_ids) <= limits.max_completion_tokens
        and max([t.prompt_lengths[prompt] for prompt in rows.prompt]) <= limits.max_prompt_tokens
        and all(math.isnan(reward) or is_reward(reward) for reward in rows.reward)
        and all(map(math.isfinite, rows.temperature))
        and all(map(math.isfinite, rows.generation_s))
        and min(rows.temperature) >= 0
        and min(rows.generation_s) >= 0
        and all(0 < top_p <= 1 for top_p in rows.top_p)
        # Many rows share a worker or a text: each distinct one is looked at once.
        and all(0 < len(t.texts[worker].encode()) <= MAX_WORKER_ID_BYTES for worker in set(rows.worker))
        and all(is_metadata(t.texts[text]) for text in set(rows.metadata))
    )


def _runs_are_fit(t: Trajectories) -> bool:
    """Return whether the policy runs of each row are not empty, cover the row's tokens, and rise within the row.

    The first run of a row must not have kept a cache.
    """
    at = 0
    for num_runs, num_ids in zip(t.rows.num_runs, t.rows.num_ids, strict=True):
        covered, before = 0, (-1, -1)
        # Policies only get newer while a completion is sampled, and only a later run can keep an older one's cache.
        for fork, version, num_tokens, kept in t.runs[at : at + num_runs]:
            if not num_tokens or (fork, version) <= before or (kept and before == (-1, -1)):
                return False
            covered, before = covered + num_tokens, (fork, version)
        if covered != num_ids:
            return False
        at += num_runs
    return True
