"""From the `reward` section of a job to its scorer: which functions share processes, and what each of them needs.

named       math, exact, regex, format, length: they share processes, since none of them is a person's code
programs    code: a sandbox waits for its program, so that it must not hold up the others
own         functions given by path: the user's code, which sees nothing of the other functions
model       a reward model each, in one process, since its weights take memory
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from periplus.environment.environment import Environment
from periplus.job.reward_functions import OWN, WeightedFunction, kind_of, label_of
from periplus.job.reward_section import RewardSection
from rollout_worker.episodes.scoring import EnvironmentScorer
from rollout_worker.rewards.child import RewardProgram
from rollout_worker.rewards.functions import model, own
from rollout_worker.rewards.pool import MAX_BATCH, RewardPool
from rollout_worker.rewards.scorer import (
    MAX_FAILURES_IN_A_ROW,
    PartScorer,
    PoolPart,
    RewardScorer,
    VerifierPart,
    WeightedPart,
)

MEMORY_SHARE = 0.5
"""Share of the machine's memory that one reward process may allocate. Chosen by hand: it ends what allocates without
end, and gets in nobody else's way. A reward model's process is not bounded, since its weights have their size."""

VERIFIER, CODE, MODEL = "verifier", "code", "model"
"""Kinds of functions that do not run beside the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPlace:
    """Where reward functions run: the folder of the user's own modules, the threads of a reward model's process, and
    whether the region lets programs run where the kernel refuses a sandbox.

    `columns` are the columns of the data set, where they are known: functions that need others are refused.
    `most_first_failures` is the number of failures after which a function that has never given a value ends the job.
    """

    code_folder: Path | None
    num_threads: int = 1
    may_run_unsandboxed: bool = False
    columns: tuple[str, ...] | None = None
    most_first_failures: int = MAX_FAILURES_IN_A_ROW


def build_scorer(
    reward: RewardSection, environment: Environment, environment_lock: asyncio.Lock, place: RewardPlace
) -> EnvironmentScorer | RewardScorer:
    """Return the scorer of a job: the environment's own where it is the only function."""
    by_environment = EnvironmentScorer(environment, environment_lock)
    if reward.is_verifier_alone:
        return by_environment
    pools: list[RewardPool] = []
    part_of: dict[str, PartScorer] = {}
    for group in _groups(reward.entries):
        kinds = [kind_of(entry) for entry in group]
        if kinds == [VERIFIER]:
            part_of[label_of(group[0])] = VerifierPart(by_environment)
            continue
        pool = _pool(reward, group, place)
        pools.append(pool)
        for index, entry in enumerate(group):
            kind = kinds[index]
            part_of[label_of(entry)] = PoolPart(
                pool, index, needs_columns=kind in (OWN, CODE, MODEL), needs_tokens=kind == OWN
            )
    parts = [
        WeightedPart(label=label_of(entry), weight=entry.weight, part=part_of[label_of(entry)])
        for entry in reward.entries
    ]
    failure_value = reward.failure_value if reward.on_failure == "value" else None
    return RewardScorer(
        parts=parts, pools=pools, failure_value=failure_value, most_first_failures=place.most_first_failures
    )


def _groups(entries: Sequence[WeightedFunction]) -> list[list[WeightedFunction]]:
    """Divide functions into those that share processes."""
    groups: dict[Any, list[WeightedFunction]] = {}
    for index, entry in enumerate(entries):
        kind = kind_of(entry)
        key: Any = (kind, index) if kind in (VERIFIER, MODEL) else kind if kind in (OWN, CODE) else "named"
        groups.setdefault(key, []).append(entry)
    return list(groups.values())


def _pool(reward: RewardSection, group: Sequence[WeightedFunction], place: RewardPlace) -> RewardPool:
    kind = kind_of(group[0])
    shared: dict[str, Any] = {"timeout_s": reward.timeout_s, "may_run_unsandboxed": place.may_run_unsandboxed}
    if kind == OWN:
        shared |= {"columns": place.columns}
    functions = tuple((kind_of(entry) or "", {**entry.model_dump(mode="json"), **shared}) for entry in group)
    folder = place.code_folder if kind == OWN else None
    is_model = kind == MODEL
    return RewardPool(
        program=RewardProgram(
            functions=functions,
            folder=folder,
            may_stay=place.may_run_unsandboxed,
            num_threads=place.num_threads if is_model else 1,
            memory_bytes=None if is_model else int(MEMORY_SHARE * _machine_bytes()),
        ),
        num_processes=1 if is_model else reward.processes,
        timeout_s=reward.timeout_s,
        labels=tuple(label_of(entry) for entry in group),
        batched=frozenset(range(len(group))) if kind in (OWN, MODEL) else frozenset(),
        max_batch={OWN: own.MAX_TEXTS, MODEL: model.MAX_TEXTS}.get(kind or "", MAX_BATCH),
    )


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
