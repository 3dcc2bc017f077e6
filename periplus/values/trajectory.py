"""A trajectory: one sampled completion on its way from a rollout worker to the trainer's ledger, and its validation.

A completion has the tokens that the policy sampled. In episodes of several turns it also has the environment's tokens
between them (context), such as tool output or a later user turn. The mask tells them apart. A sampled token has its
log-probability under the policy that sampled it (the behaviour policy), and it enters the loss. A context token has
log-probability exactly 0 and is never trained on. The policy of each token is run-length encoded; context belongs to
the run around it. Weights may be swapped within a generation, so that there may be several runs. Policies only rise
from run to run, so the first run is the oldest. A later run says whether the engine kept the key-value cache of the
older policies, or computed it again.

Arrays are read-only; those of a decoded frame are views of its columns. `content_digest` identifies the content that is
trained on, so that an audit can compare what was sampled with what the optimizer got.

`validate` is the only check of values that come from a peer. It does not know what a token means. Whether the lease is
still valid and the tokens are fresh enough is checked by the ledger.
"""

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from periplus.errors import CorruptFrame
from periplus.values.policy import Policy

LOGPROB_TOLERANCE = 1e-4
"""How far above 0 a log-probability may lie: float32 log-softmax over large vocabularies overshoots by about 1e-6."""

MAX_REWARD = 1e6
"""Largest magnitude of a reward. Chosen by hand: usual rewards are of the order of 1 to 100, and float32, in which
losses are computed, still distinguishes 1e6 from 1e6 + 0.1. The results of training on such a reward are finite in
float32: a critic's squared error is 4e12, and an unnormalised advantage times the largest ratio
(losses/log_ratio.py) is 1e15."""

MAX_WORKER_ID_BYTES = 256
"""Longest worker id, in bytes of UTF-8. Chosen by hand: a region, a job and a counter need a quarter of it."""

MAX_METADATA_BYTES = 1 << 16
"""Longest metadata of one sample, in bytes of UTF-8. Chosen by hand: pages of text, but no transcript, which is already
in the tokens."""

DIGEST_BYTES = 16
"""Size of a content digest."""

_DIGEST_HEAD = struct.Struct("<B QIQB dB ddI 3I")
_DIGEST_LAYOUT = 1
_DIGEST_LAYOUT_KEPT_KV = 2  # used only if some run kept its cache, so that all other digests are what they always were
_RUN = struct.Struct("<IQI")


class Purpose(StrEnum):
    """What a sample is for."""

    TRAIN = "train"
    EVAL = "eval"


class StopReason(StrEnum):
    """Why generation ended."""

    EOS = "eos"
    LENGTH = "length"
    ABANDONED = "abandoned"
    STOP = "stop"  # with its last token the text contains a stop string of the job


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """A run of `num_tokens` consecutive completion tokens that this policy sampled.

    `kept_kv`: the keys and values that this run's tokens attend to were computed in part by older policies.
    """

    policy: Policy
    num_tokens: int
    kept_kv: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens were drawn from the policy's distribution."""

    temperature: float  # 0 means greedy
    top_p: float = 1.0  # 1 means no nucleus sampling
    top_k: int = 0  # 0 means no limit


PURPOSES = (Purpose.TRAIN, Purpose.EVAL)
STOP_REASONS = (StopReason.EOS, StopReason.LENGTH, StopReason.ABANDONED, StopReason.STOP)
"""Every purpose and every stop reason, in the order of their numbers in frames and digests. New ones go to the end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """A finished sample. Trajectories are equal if they are equal bit for bit: arrays are compared by their bytes.

    *Shapes*: `completion_ids`, `logprobs` and `mask` have one element per completion token.
    """

    lease_id: int
    group: int
    sample: int
    item: int  # index into the job's environment
    purpose: Purpose
    prompt_ids: npt.NDArray[np.int32]
    completion_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]  # under the behaviour policy; 0.0 where the token is context
    mask: npt.NDArray[np.bool_]  # True for a sampled token, which enters the loss; False for context
    policies: tuple[PolicyRun, ...]  # the runs cover the completion tokens; policies rise; the first never has kept_kv
    reward: float | None  # None: no reward function judged the sample
    stop_reason: StopReason
    sampling: SamplingParams
    metadata: str = ""  # from the environment: a JSON object as text, or empty
    worker_id: str
    generation_s: float

    def key(self) -> tuple[object, ...]:
        """Return all fields as one hashable value."""
        values = (getattr(self, f.name) for f in fields(self))
        return tuple(v.tobytes() if isinstance(v, np.ndarray) else v for v in values)

    def __eq__(self, other: object) -> bool:
        return self.key() == other.key() if isinstance(other, Trajectory) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryLimits:
    """The largest sizes that a job's model and sampling settings allow."""

    vocab_size: int
    max_prompt_tokens: int
    max_completion_tokens: int


def read_only(values: npt.ArrayLike, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a new read-only array of the values."""
    array = np.array(values, dtype)
    array.flags.writeable = False
    return array


def token_ids(values: Iterable[int]) -> npt.NDArray[np.int32]:
    """Return token ids as the read-only int32 array of a trajectory. Raises: OverflowError if one is not an int32."""
    return read_only(tuple(values), np.int32)


def content_digest(trajectory: Trajectory) -> bytes:
    """Return 16 bytes of BLAKE3 over the content of a trajectory that training uses.

    The lease, the worker, the metadata and the generation time are left out. The hashed bytes are, little-endian:
    u8 layout (1), u64 group, u32 sample, u64 item, u8 purpose, f64 reward (NaN without one), u8 stop reason, f64
    temperature, f64 top_p, u32 top_k, u32 number of prompt ids, u32 number of completion ids, u32 number of policy
    runs; for each run u32 fork, u64 version, u32 number of tokens; then the prompt ids and completion ids as i32,
    logprobs as f32, mask as u8.

    If some run has `kept_kv`, the layout is 2, and one u8 for each run (1: kept) follows the runs.
    """
    t, sampling = trajectory, trajectory.sampling
    kept = bytes([run.kept_kv for run in t.policies])
    head = _DIGEST_HEAD.pack(
        _DIGEST_LAYOUT_KEPT_KV if any(kept) else _DIGEST_LAYOUT,
        t.group,
        t.sample,
        t.item,
        PURPOSES.index(t.purpose),
        wire_reward(t.reward),
        STOP_REASONS.index(t.stop_reason),
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        len(t.prompt_ids),
        len(t.completion_ids),
        len(t.policies),
    )
    # The numbers of ids and runs stand in the head, so that no two contents have the same bytes.
    runs = b"".join([_RUN.pack(run.policy.fork, run.policy.version, run.num_tokens) for run in t.policies])
    hashed = blake3(head + runs + (kept if any(kept) else b""))
    for array in (t.prompt_ids, t.completion_ids, t.logprobs, t.mask):
        hashed.update(np.ascontiguousarray(array).view(np.uint8).data)
    return hashed.digest(length=DIGEST_BYTES)


def validate(trajectory: Trajectory, limits: TrajectoryLimits) -> None:
    """Check everything about a trajectory that can be checked without the ledger's state.

    Raises: CorruptFrame with the wrong field and its value.
    """
    t, num_tokens = trajectory, len(trajectory.completion_ids)
    # Types come first, because the checks below compute with these arrays.
    for name, array, dtype in (
        ("prompt ids", t.prompt_ids, np.int32),
        ("completion ids", t.completion_ids, np.int32),
        ("logprobs", t.logprobs, np.float32),
        ("mask", t.mask, np.bool_),
    ):
        _check(array.dtype == dtype and array.ndim == 1, f"type of {name}", f"{array.dtype}, {array.ndim}-D", t)
    _at_most("prompt tokens", len(t.prompt_ids), limits.max_prompt_tokens, t)
    _at_most("completion tokens", num_tokens, limits.max_completion_tokens, t)
    _ids_in_vocabulary("prompt", t.prompt_ids, limits.vocab_size, t)
    _ids_in_vocabulary("completion", t.completion_ids, limits.vocab_size, t)
    _check(len(t.logprobs) == num_tokens, "number of logprobs", len(t.logprobs), t)
    _check(len(t.mask) == num_tokens, "number of mask bits", len(t.mask), t)
    _check_logprobs(t)
    _check_runs(t, num_tokens)
    _check_reward(t)
    _check_sampling(t)
    _check(math.isfinite(t.generation_s) and t.generation_s >= 0, "generation_s", t.generation_s, t)
    _check(0 < len(t.worker_id.encode()) <= MAX_WORKER_ID_BYTES, "worker_id", t.worker_id[:80], t)
    _check(is_metadata(t.metadata), "metadata (a JSON object in at most 64 KiB, or nothing)", t.metadata[:80], t)


def is_metadata(text: str) -> bool:
    """Return whether a text is valid metadata: empty, or a JSON object of at most `MAX_METADATA_BYTES`."""
    if not text:
        return True
    if len(text) > MAX_METADATA_BYTES or len(text.encode()) > MAX_METADATA_BYTES:
        return False
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def is_reward(value: float) -> bool:
    """Return whether a reward is valid: a number of at most `MAX_REWARD` in magnitude, and not NaN."""
    return -MAX_REWARD <= value <= MAX_REWARD


def wire_reward(reward: float | None) -> float:
    """Return the number that stands for a reward in frames, digests and files: NaN for a sample without one."""
    return math.nan if reward is None else reward


def reward_of_wire(number: float) -> float | None:
    """Return the reward for which `wire_reward` returned this number."""
    return None if math.isnan(number) else number


def _check_reward(trajectory: Trajectory) -> None:
    if trajectory.reward is not None and not is_reward(trajectory.reward):
        t = trajectory
        raise CorruptFrame(
            f"bad reward: {t.reward} of group {t.group} sample {t.sample} is no number from {-MAX_REWARD:.0f} to "
            f"{MAX_REWARD:.0f} (lease {t.lease_id}, item {t.item}, worker {t.worker_id[:80]!r}); drop the "
            "trajectory, and scale the rewards of the environment"
        )


def _check_logprobs(trajectory: Trajectory) -> None:
    logprobs, mask = trajectory.logprobs, trajectory.mask
    if not len(logprobs):
        return
    # If any value is NaN, then min and max are NaN, and both comparisons are false.
    if not (float(logprobs.min()) > -math.inf and float(logprobs.max()) <= LOGPROB_TOLERANCE):
        bad = ~(np.isfinite(logprobs) & (logprobs <= LOGPROB_TOLERANCE))
        _check(False, "logprob", logprobs[bad][:1], trajectory)
    if not mask.all():
        of_context = logprobs[~mask]
        _check(not of_context.view(np.int32).any(), "logprob of context", of_context[of_context != 0][:1], trajectory)


def _check_runs(trajectory: Trajectory, num_tokens: int) -> None:
    runs = trajectory.policies
    _check(all(run.num_tokens > 0 for run in runs), "empty policy run", runs, trajectory)
    covered = sum(run.num_tokens for run in runs)
    _check(covered == num_tokens, "tokens covered by policy runs", covered, trajectory)
    rising = all(a.policy < b.policy for a, b in pairwise(runs))
    _check(rising, "policy runs that do not rise", [str(run.policy) for run in runs], trajectory)
    # Before the first run there is no older policy whose keys and values could have been kept.
    _check(not (runs and runs[0].kept_kv), "kept_kv of the first policy run", runs[:1], trajectory)


def _check_sampling(trajectory: Trajectory) -> None:
    sampling = trajectory.sampling
    fit = math.isfinite(sampling.temperature) and sampling.temperature >= 0 and 0 < sampling.top_p <= 1
    _check(fit and sampling.top_k >= 0, "sampling", sampling, trajectory)


def _ids_in_vocabulary(what: str, ids: npt.NDArray[np.int32], vocab_size: int, trajectory: Trajectory) -> None:
    if len(ids):
        lowest, highest = int(ids.min()), int(ids.max())
        _check(lowest >= 0, f"{what} id", lowest, trajectory)
        _check(highest < vocab_size, f"{what} id (vocabulary {vocab_size})", highest, trajectory)


def _at_most(what: str, value: int, limit: int, trajectory: Trajectory) -> None:
    _check(value <= limit, f"number of {what} (limit {limit})", value, trajectory)


def _check(ok: bool, what: str, value: object, trajectory: Trajectory) -> None:
    if not ok:
        where = f"lease {trajectory.lease_id}, {len(trajectory.completion_ids)} completion tokens"
        raise CorruptFrame(f"bad {what}: {value} ({where}, worker {trajectory.worker_id[:80]!r}); drop the trajectory")
