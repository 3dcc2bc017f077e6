"""Drawn lengths follow the workload's quantiles, correlate within a group, and depend only on the seed."""

import numpy as np
import pytest

from planner.devices.catalogue import architecture
from planner.problem.lengths import lognormal
from planner.problem.workload import Task, Workload
from planner.simulate.generation.draws import Draws
from planner.simulate.settings import SETTINGS

WORKLOAD = Workload(
    algorithm="grpo",
    models={Task.GENERATION: architecture("Qwen3-4B")},
    eta=0,
    prompts_per_step=8,
    group_size=8,
    prompt_tokens=lognormal(median_tokens=100, sigma=0.6, cap_tokens=1024),
    completion_tokens=lognormal(median_tokens=382, sigma=1.09, cap_tokens=1024),
)


def test_lengths_have_the_workloads_distribution() -> None:
    draws = Draws(WORKLOAD, 1)
    drawn = [draws.prompt(group) for group in range(4096)]
    completions = np.array([prompt.completions for prompt in drawn]).ravel()
    assert completions.mean() == pytest.approx(WORKLOAD.completion_tokens.mean, rel=0.02)
    for level in (0.1, 0.5, 0.9):
        assert np.quantile(completions, level) == pytest.approx(WORKLOAD.completion_tokens.at(level), rel=0.06)
    assert np.mean([prompt.tokens for prompt in drawn]) == pytest.approx(WORKLOAD.prompt_tokens.mean, rel=0.03)
    assert completions.min() >= 1
    assert completions.max() <= WORKLOAD.completion_tokens.largest


def test_one_prompts_completions_resemble_each_other() -> None:
    draws = Draws(WORKLOAD, 1)
    ranks = np.argsort(np.argsort(np.array([draws.prompt(group).completions for group in range(4096)]).ravel()))
    rows = ranks.reshape(4096, 8).astype(float)
    within = np.corrcoef(rows[:, :4].ravel(), rows[:, 4:].ravel())[0, 1]
    assert within == pytest.approx(SETTINGS.group_correlation, abs=0.06)


def test_a_group_is_the_same_whoever_asks_first() -> None:
    one, other = Draws(WORKLOAD, 7), Draws(WORKLOAD, 7)
    forwards = [one.prompt(group) for group in (0, 300, 900)]
    backwards = [other.prompt(group) for group in (900, 300, 0)]
    assert forwards == backwards[::-1]
    assert Draws(WORKLOAD, 8).prompt(0) != forwards[0]
