"""Refilled slots, compared with simulated slots, conservation of tokens, and renewal theory in the long run."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.tasks.generation import mean_age
from planner.cost.tasks.slot_refill import RATIOS, refilled
from planner.problem.lengths import lognormal
from planner.problem.workload import Lengths
from tests.support.planner.cost import workload

LENGTHS = st.lists(st.integers(1, 2000), min_size=1, max_size=20)


@settings(max_examples=25)
@given(LENGTHS)
def test_no_token_is_lost(lengths: list[int]) -> None:
    of = Lengths(quantiles=tuple(sorted(float(each) for each in lengths)))
    run = refilled(of)
    made = run.full_tokens + run.alive @ run.tokens
    assert (made >= np.array(RATIOS) * of.mean * (1 - 1e-9)).all()
    assert made == pytest.approx(np.array(RATIOS) * of.mean, rel=0.05, abs=of.largest * 0.05)
    assert (run.alive <= 1 + 1e-9).all()
    assert (np.diff(run.alive, axis=1) <= 1e-9).all()
    assert run.tokens.sum() == pytest.approx(of.largest)


def test_equal_lengths_run_in_waves() -> None:
    run = refilled(Lengths(quantiles=(400.0,)))
    two, half = RATIOS.index(2.0), RATIOS.index(1.5)
    assert run.full_tokens[[two, half]] == pytest.approx([400, 400], abs=30)
    assert run.alive[half, 4:-4] == pytest.approx(0.5, abs=0.01)


def test_after_many_refills_what_runs_has_the_ages_that_renewal_theory_gives_it() -> None:
    of = workload(lengths=list(range(100, 900, 7)))
    run = refilled(of.completion_tokens)
    assert run.alive[-1] @ run.tokens == pytest.approx(mean_age(of), rel=0.02)
    assert run.age[-1, 0] == pytest.approx(mean_age(of), rel=0.03)


@pytest.mark.parametrize("ratio", [1.2, 1.75, 3.0])
def test_played_slots_are_full_as_long_and_drain_alike(ratio: float) -> None:
    lengths = lognormal(median_tokens=400, sigma=0.8, cap_tokens=1600)
    run, place, num = refilled(lengths), RATIOS.index(ratio), 4000
    rng = np.random.default_rng(1)
    queue = rng.choice(np.array(lengths.quantiles), size=round(num * ratio))
    slots = sorted(queue[:num])
    for length in queue[num:]:
        empty_at = heapq.heappop(slots)
        heapq.heappush(slots, empty_at + length)
    left = np.array(slots) - empty_at
    assert run.full_tokens[place] == pytest.approx(empty_at, rel=0.05)
    middle = np.cumsum(run.tokens) - run.tokens / 2
    alive = (left[:, None] > middle).mean(axis=0)
    assert np.abs(run.alive[place] - alive).mean() < 0.01
