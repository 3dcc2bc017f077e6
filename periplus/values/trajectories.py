"""Many trajectories as columns: how a frame holds them in memory, and how they are checked at once.

Tokens of all samples stand end to end in one array a kind; `Rows` say how many belong to each sample, which prompt,
worker and metadata are its own, and the numbers that a sample has once. `views` cuts the arrays into `Trajectory`
values without copying a token. `validate_all` accepts exactly what `periplus.values.trajectory.validate` accepts of
every view, but looks at tokens a frame at a time. A frame has few rows, so their columns are plain tuples: numpy would
take longer.

Whoever builds `Trajectories` has proved that counts and indices fit each other; what the values mean is judged here.
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
    validate,
)

LEAST_FINITE_BITS = -(1 << 23) - 1
"""The bits of the float32 farthest below 0, as int32: those of all finite negative numbers are at most that."""


class Rows(NamedTuple):
    """What a sample has once, as columns. The last five count into prompts, texts, texts, PURPOSES, STOP_REASONS."""

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
        """Rows turned into columns."""
        return cls(*zip(*rows, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectories:
    """The samples of one frame; arrays are read-only. *Shapes*: T completion tokens of all rows, end to end."""

    rows: Rows
    runs: Sequence[tuple[int, int, int]]  # of all rows, end to end: fork, version, completion tokens
    prompt_lengths: Sequence[int]
    ids: npt.NDArray[np.int32]  # of all prompts, then [T]
    logprobs: npt.NDArray[np.float32]  # [T]
    mask: npt.NDArray[np.bool_]  # [T]
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.rows.lease_id)

    def views(self) -> tuple[Trajectory, ...]:
        """One trajectory a row, in order; arrays are views of the columns."""
        views, at, runs_at = [], 0, 0
        completion_ids, logprobs, mask = self.ids[len(self.ids) - len(self.mask) :], self.logprobs, self.mask
        prompts = [self.ids[a:b] for a, b in pairwise(accumulate(self.prompt_lengths, initial=0))]
        sampled_with: dict[tuple[float, float, int], SamplingParams] = {}  # most often one for all
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
            policies = tuple([PolicyRun(Policy(fork, version), n) for fork, version, n in self.runs[runs_at:runs_end]])
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
                    reward=reward,
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
    """`validate` for every row, and for prompts that no row has.

    Raises: CorruptFrame, as `validate` does for the first row that is not fit.
    """
    t = trajectories
    if _tokens_are_fit(t, limits) and _rows_are_fit(t, limits) and _runs_are_fit(t):
        return
    for trajectory in t.views():
        validate(trajectory, limits)
    raise CorruptFrame("a prompt that no sample has holds ids beyond the vocabulary; drop the frame")


def _tokens_are_fit(t: Trajectories, limits: TrajectoryLimits) -> bool:
    if len(t.ids) and t.ids.view(np.uint32).max() >= limits.vocab_size:  # a negative id is a large one
        return False
    if not len(t.logprobs) or t.logprobs.view(np.int32).max() <= LEAST_FINITE_BITS:  # one pass is cheaper than two
        return bool(t.mask.all())
    # Either is NaN if any is, and then compares false.
    if not (t.logprobs.min() > -math.inf and t.logprobs.max() <= LOGPROB_TOLERANCE):
        return False
    return bool(t.mask.all()) or not t.logprobs.view(np.int32)[~t.mask].any()


def _rows_are_fit(t: Trajectories, limits: TrajectoryLimits) -> bool:
    rows = t.rows
    if not len(t):
        return True
    return (
        max(rows.num_ids) <= limits.max_completion_tokens
        and max([t.prompt_lengths[prompt] for prompt in rows.prompt]) <= limits.max_prompt_tokens
        and all(map(is_reward, rows.reward))
        and all(map(math.isfinite, rows.temperature))
        and all(map(math.isfinite, rows.generation_s))
        and min(rows.temperature) >= 0
        and min(rows.generation_s) >= 0
        and all(0 < top_p <= 1 for top_p in rows.top_p)
        and all(0 < len(t.texts[worker].encode()) <= MAX_WORKER_ID_BYTES for worker in set(rows.worker))
        and all(is_metadata(t.texts[text]) for text in set(rows.metadata))
    )


def _runs_are_fit(t: Trajectories) -> bool:
    """Runs are not empty, cover the tokens of their row, and rise within it."""
    at = 0
    for num_runs, num_ids in zip(t.rows.num_runs, t.rows.num_ids, strict=True):
        covered, before = 0, (-1, -1)
        for fork, version, num_tokens in t.runs[at : at + num_runs]:
            if not num_tokens or (fork, version) <= before:
                return False
            covered, before = covered + num_tokens, (fork, version)
        if covered != num_ids:
            return False
        at += num_runs
    return True
