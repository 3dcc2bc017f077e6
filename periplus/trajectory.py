"""One sampled completion as it travels from a rollout worker to the ledger, and what makes it acceptable.

A trajectory owns its tokens: each completion token has an id, the log-probability under the policy that sampled it (the
behaviour policy), a bit that says whether the loss sees it, and, run-length encoded, that policy. Weights may be
swapped within a generation, so there may be several runs; policies only rise, thus the first run is the oldest.

`validate` is the one gate between a peer's values and ours. It refuses to know what a token means, whether the lease is
live, and whether the tokens are fresh enough: that is the ledger's.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from periplus.errors import CorruptFrame
from periplus.policy import Policy

LOGPROB_TOLERANCE = 1e-4
"""How far above 0 a log-probability may lie: float32 log-softmax over large vocabularies overshoots by about 1e-6."""

MAX_WORKER_ID_BYTES = 256
"""Region, job and a counter fit in a quarter of this."""


class Purpose(StrEnum):
    """What a sample is for."""

    TRAIN = "train"
    EVAL = "eval"


class StopReason(StrEnum):
    """Why generation ended."""

    EOS = "eos"
    LENGTH = "length"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """So many consecutive completion tokens were sampled by this policy."""

    policy: Policy
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """A finished sample. Equal means equal bit for bit: `logprobs` is compared by its bytes."""

    lease_id: int
    group: int
    sample: int
    item: int  # index into the job's environment
    purpose: Purpose
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: npt.NDArray[np.float32]  # [completion tokens], of the behaviour policy
    mask: tuple[int, ...]  # [completion tokens], 1: the loss sees the token
    policies: tuple[PolicyRun, ...]  # cover the completion tokens, strictly rising
    reward: float
    stop_reason: StopReason
    worker_id: str
    generation_s: float

    def key(self) -> tuple[object, ...]:
        """All fields as one hashable value."""
        values = (getattr(self, f.name) for f in fields(self))
        return tuple(v.tobytes() if isinstance(v, np.ndarray) else v for v in values)

    def __eq__(self, other: object) -> bool:
        return self.key() == other.key() if isinstance(other, Trajectory) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key())


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a job's model and sampling allow."""

    vocab_size: int
    max_prompt_tokens: int
    max_completion_tokens: int


def policy_runs(policies: Iterable[Policy]) -> tuple[PolicyRun, ...]:
    """Run-length encode the policy of each token."""
    return tuple(PolicyRun(policy, len(list(run))) for policy, run in groupby(policies))


def oldest_policy(trajectory: Trajectory) -> Policy | None:
    """The policy of the oldest token; None if there is no token."""
    return trajectory.policies[0].policy if trajectory.policies else None


def validate(trajectory: Trajectory, limits: Limits) -> None:
    """Check everything about a trajectory that needs no history.

    Raises: CorruptFrame, naming what is wrong and the value.
    """
    t, num_tokens = trajectory, len(trajectory.completion_ids)
    _at_most("prompt tokens", len(t.prompt_ids), limits.max_prompt_tokens, t)
    _at_most("completion tokens", num_tokens, limits.max_completion_tokens, t)
    _ids_in_vocabulary("prompt", t.prompt_ids, limits.vocab_size, t)
    _ids_in_vocabulary("completion", t.completion_ids, limits.vocab_size, t)
    _check(t.logprobs.dtype == np.float32 and t.logprobs.ndim == 1, "type of logprobs", t.logprobs.dtype, t)
    _check(len(t.logprobs) == num_tokens, "number of logprobs", len(t.logprobs), t)
    in_range = np.isfinite(t.logprobs) & (t.logprobs <= LOGPROB_TOLERANCE)
    _check(bool(in_range.all()), "logprob", t.logprobs[~in_range][:1], t)
    _check(len(t.mask) == num_tokens, "number of mask bits", len(t.mask), t)
    _check(all(bit in (0, 1) for bit in t.mask), "mask", t.mask, t)
    _check_runs(t, num_tokens)
    _check(math.isfinite(t.reward), "reward", t.reward, t)
    _check(math.isfinite(t.generation_s) and t.generation_s >= 0, "generation_s", t.generation_s, t)
    _check(0 < len(t.worker_id.encode()) <= MAX_WORKER_ID_BYTES, "worker_id", t.worker_id[:80], t)


def _check_runs(trajectory: Trajectory, num_tokens: int) -> None:
    runs = trajectory.policies
    _check(all(run.num_tokens > 0 for run in runs), "empty policy run", runs, trajectory)
    covered = sum(run.num_tokens for run in runs)
    _check(covered == num_tokens, "tokens covered by policy runs", covered, trajectory)
    rising = all(a.policy < b.policy for a, b in pairwise(runs))
    _check(rising, "policy runs that do not rise", [str(run.policy) for run in runs], trajectory)


def _ids_in_vocabulary(what: str, ids: Sequence[int], vocab_size: int, trajectory: Trajectory) -> None:
    if ids:
        _check(min(ids) >= 0, f"{what} id", min(ids), trajectory)
        _check(max(ids) < vocab_size, f"{what} id (vocabulary {vocab_size})", max(ids), trajectory)


def _at_most(what: str, value: int, limit: int, trajectory: Trajectory) -> None:
    _check(value <= limit, f"number of {what} (limit {limit})", value, trajectory)


def _check(ok: bool, what: str, value: object, trajectory: Trajectory) -> None:
    if not ok:
        where = f"lease {trajectory.lease_id}, {len(trajectory.completion_ids)} completion tokens"
        raise CorruptFrame(f"bad {what}: {value} ({where}, worker {trajectory.worker_id[:80]!r}); drop the trajectory")
