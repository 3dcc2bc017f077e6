"""Chooses samples in each step and computes them again; says which worker's samples are not from its weights.

Time is bounded: samples are computed again only while all checks have taken less than `COST_SHARE` of the time of
training. Workers take turns, so that each is looked at. What is checked of a sample are the tokens of its first
version: later ones may attend to keys and values of several versions.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from periplus.job.job_file import JobFile
from periplus.process.host_limits import memory_bytes
from periplus.values.keyed_draws import row_keys, uniforms
from periplus.values.policy import Policy
from periplus.values.trajectory import Trajectory
from periplus.values.weight_state import WeightState, content_bytes
from periplus.view import units
from trainer.checks.doubted_workers import DoubtedWorkers
from trainer.checks.evidence import WINDOW, FloatArray, RescoredTokens, SampleEvidence
from trainer.checks.kept_versions import KeptVersions
from trainer.checks.rescoring import Rescorer
from trainer.learning.batch import sample_of

COST_SHARE = 0.02
"""Share of the time of training that checks take at most."""

MIN_TOKENS = 128
"""Completion tokens that one check computes again, if there are so many: the fixed cost of a check is that of
converting the weights three times. Chosen by hand."""

KEPT_SHARE = 8
"""Kept versions take at most one part in so many of the memory that this process may use. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsoundSamples:
    """A worker whose samples are not from the weights that it named.

    All that it sampled from version `first` on is in doubt: since its last finding, its first check, or the beginning
    of the last `WINDOW` tokens that raised no alarm. `last` is the version in which it was found. `num_tokens` of it
    were computed again since its last finding, or since the start.
    """

    worker_id: str
    first: Policy
    last: Policy
    why: str
    num_tokens: int


@dataclass(slots=True)
class _Window:
    """Tokens of one worker that were computed again, from version `first` on."""

    first: Policy
    num_tokens: int = 0


class SampleChecks:
    """The checks of one job's samples.

    Samples that are in doubt by an earlier finding (`doubted`) are not computed again. `bound` is the job's bound of
    staleness. `now` returns seconds on a monotonic clock. `draw_seed` is the seed of the keys with which all engines
    draw (periplus/values/keyed_draws.py); None if one of them draws in another way.
    """

    def __init__(
        self,
        rescorer: Rescorer,
        doubted: DoubtedWorkers,
        *,
        bound: int,
        now: Callable[[], float],
        draw_seed: int | None = None,
    ) -> None:
        self.doubted = doubted
        self._rescorer = rescorer
        self._draw_seed = draw_seed
        self._max_bytes = memory_bytes() // KEPT_SHARE
        self._versions = KeptVersions(bound + 2, self._max_bytes)  # what may be trained on, and one before
        self._version_bytes = 0
        self._now = now
        self._evidence: dict[str, SampleEvidence] = {}
        self._tokens_of = Counter[str]()
        self._tokens_before = Counter[str]()  # of each worker, at its last finding
        self._windows: dict[str, list[_Window]] = {}  # of each worker: the last one without an alarm, and this one
        self._num_checks = 0
        self.spent_s = 0.0
        """Seconds that all checks have taken."""
        self.num_tokens = 0
        """Completion tokens that were computed again."""
        self.obstacle = ""
        """Why nothing can be computed again at present; empty if it can."""

    def published(self, policy: Policy, state: WeightState) -> None:
        """Keep a version that workers will sample from."""
        self._versions.add(policy, state)
        self._version_bytes = content_bytes(state)

    def check(self, trained: Sequence[Trajectory], trained_s: float) -> list[UnsoundSamples]:
        """Compute some samples again, if `trained_s` seconds of training allow it, and return what was found."""
        self.obstacle = self._obstacle()
        if self.obstacle or self.spent_s > COST_SHARE * trained_s:
            return []
        started_s = self._now()
        findings = self._checked(trained)
        self.spent_s += self._now() - started_s
        return findings

    def _obstacle(self) -> str:
        if self._version_bytes > self._max_bytes:
            return (
                f"a version has {units.size(self._version_bytes)}, and an eighth of this machine's memory, "
                f"{units.size(self._max_bytes)}, is for versions"
            )
        if missing := self._rescorer.missing_bytes:
            return f"the weights in float32 need {units.size(missing)} more of the device's memory"
        return ""

    def _checked(self, trained: Sequence[Trajectory]) -> list[UnsoundSamples]:
        policy, chosen = self._choice(trained)
        state = None if policy is None else self._versions.of(policy)
        if policy is None or state is None:
            return []
        older = self._versions.before(policy)
        # By turns the version before, and the oldest one.
        base = older[-1 if self._num_checks % 2 else 0] if older else None
        self._num_checks += 1
        findings = []
        for worker_id, tokens in self._compared(chosen, state, None if base is None else self._versions.of(base)):
            windows = self._windows.setdefault(worker_id, [_Window(policy)])
            if windows[-1].num_tokens >= WINDOW:
                windows[:] = windows[-1], _Window(policy)
            windows[-1].num_tokens += len(tokens.reported)
            why = self._evidence.setdefault(worker_id, SampleEvidence()).add(tokens)
            self._tokens_of[worker_id] += len(tokens.reported)
            self.num_tokens += len(tokens.reported)
            if why:
                num_tokens = self._tokens_of[worker_id] - self._tokens_before[worker_id]
                self._tokens_before[worker_id] = self._tokens_of[worker_id]
                first = windows[0].first
                findings.append(
                    UnsoundSamples(worker_id=worker_id, first=first, last=policy, why=why, num_tokens=num_tokens)
                )
                del self._evidence[worker_id], self._windows[worker_id]
        return findings

    def _choice(self, trained: Sequence[Trajectory]) -> tuple[Policy | None, list[Trajectory]]:
        """Return a kept version and samples that begin with it: those of the worker that was checked least first."""
        known = [each for each in trained if self._is_checkable(each)]
        if not known:
            return None, []
        # Samples of one prompt share their rounding, and say less than those of many.
        known.sort(key=lambda each: (self._tokens_of[each.worker_id], each.sample))
        least = known[0].worker_id
        versions = Counter(each.policies[0].policy for each in known if each.worker_id == least)
        policy = versions.most_common(1)[0][0]
        chosen, num_tokens = list[Trajectory](), 0
        for each in known:
            if each.policies[0].policy == policy and num_tokens < MIN_TOKENS:
                chosen.append(each)
                num_tokens += each.policies[0].num_tokens
        return policy, chosen

    def _is_checkable(self, trajectory: Trajectory) -> bool:
        sampling = trajectory.sampling
        is_whole = sampling.temperature > 0 and sampling.top_p == 1 and sampling.top_k == 0
        is_known = self._versions.of(trajectory.policies[0].policy) is not None
        return is_whole and is_known and not self.doubted.in_doubt(trajectory)

    def _compared(
        self, chosen: Sequence[Trajectory], state: WeightState, older: WeightState | None
    ) -> Iterator[tuple[str, RescoredTokens]]:
        """Yield the tokens of each worker. Samples of one temperature are computed together."""
        for temperature in sorted({each.sampling.temperature for each in chosen}):
            alike = [each for each in chosen if each.sampling.temperature == temperature]
            samples = [sample_of(each, None) for each in alike]
            exact, rounded = (
                self._rescorer.surprisals(state, samples, temperature, dtype)
                for dtype in (torch.float32, torch.bfloat16)
            )
            before = None if older is None else self._rescorer.surprisals(older, samples, temperature, torch.float32)
            ends = np.cumsum([len(each.completion_ids) for each in alike])
            places = np.concatenate([_place_of_tokens(each) for each in alike])
            worker_of = np.repeat([each.worker_id for each in alike], np.diff(ends, prepend=0))
            contexts = _contexts(alike)
            seed = self._draw_seed
            columns: dict[str, FloatArray | None] = {
                "reported": np.concatenate([each.logprobs for each in alike]).astype(np.float64),
                "exact": exact.logprobs_M.double().numpy(),
                "rounded": rounded.logprobs_M.double().numpy(),
                "older": None if before is None else before.logprobs_M.double().numpy(),
                "entropies": exact.entropies_M.double().numpy(),
                "variances": exact.variances_M.double().numpy(),
                "below": exact.below_M.numpy(),
                "below_rounded": rounded.below_M.numpy(),
                "uniforms": None if seed is None else np.concatenate([_uniforms(each, seed) for each in alike]),
            }
            for worker_id in sorted(set(worker_of)):
                here = (worker_of == worker_id) & (places >= 0)
                parts: Any = {name: None if column is None else column[here] for name, column in columns.items()}
                yield str(worker_id), RescoredTokens(**parts, is_prefill=places[here] == 0, contexts=contexts[here])


def _place_of_tokens(trajectory: Trajectory) -> Any:
    """Return the place of each completion token, or -1 for one that is not checked."""
    places = np.arange(len(trajectory.completion_ids))
    return np.where(trajectory.mask & (places < trajectory.policies[0].num_tokens), places, -1)


def draw_seed(job: JobFile, plan_json: str) -> int | None:
    """Return the seed of the keys with which all of a job's engines draw, or None if one of them draws in another way.

    Engines are those of the plan's processes; `plan_json` is empty for a job without one.
    """
    rows = json.loads(plan_json or "{}").get("assignments", ())
    engines = {row["engine"] for row in rows if row.get("engine")} or {job.engine.name}
    return job.seed if engines == {"torch"} else None


def _uniforms(trajectory: Trajectory, seed: int) -> FloatArray:
    """Return the random number of each completion token, if all are of the first version."""
    version, size = trajectory.policies[0].policy.version, len(trajectory.completion_ids)
    (key,) = row_keys(seed, version, [trajectory.group], [trajectory.sample])
    return uniforms(np.full(size, key), np.arange(size))


def _contexts(trajectories: Sequence[Trajectory]) -> npt.NDArray[np.int64]:
    """Return a number for the text before each completion token: the same for the same text."""
    numbers: dict[tuple[int, bytes | int], int] = {}
    found = []
    for each in trajectories:
        number = numbers.setdefault((-1, each.prompt_ids.tobytes()), len(numbers))
        for token in each.completion_ids.tolist():
            found.append(number)
            number = numbers.setdefault((number, token), len(numbers))
    return np.array(found, np.int64)
