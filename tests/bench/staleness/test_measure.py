"""Figures of a run, and the best rate that they are held against."""

import numpy as np
import pytest

from bench.staleness.lengths import Lengths, Source, drawn
from bench.staleness.measure import IDEAL_STEPS, Best, Window, best_rate, ideal_group_times_s, simulate
from bench.staleness.peers import Peer, Rule
from bench.staleness.simulator import Simulator
from bench.staleness.world import Link, World


def world_of(slots: int, bound: int, step_s: float = 10.0) -> World:
    return World(
        links={"here": Link(one_way_s=0.0, throughput_gbit_per_s=1.0)},
        worker_regions=("here",),
        slots=(slots,),
        tokens_per_s=1.0,
        sample_s=8.0,
        step_s=step_s,
        groups_per_step=8,
        group_size=2,
        bound=bound,
        deaths_per_hour=0.0,
        encode_s=0.0,
        load_s=1.0,
        relay_s=0.0,
    )


LONG_TAIL = Source(name="tail", groups=np.array([[5, 5]] * 18 + [[60, 20], [20, 60]]))


def test_groups_in_an_ideal_queue_take_turns_on_the_slots() -> None:
    took_s = np.full((8 * IDEAL_STEPS, 2), 3.0)
    times_s = ideal_group_times_s(world_of(slots=4, bound=1), took_s, period_s=100.0)
    assert times_s[:8].tolist() == [3.0, 3.0, 6.0, 6.0, 9.0, 9.0, 12.0, 12.0]


def test_the_best_rate_without_wait_is_the_rule() -> None:
    lengths = drawn(LONG_TAIL, 2, 8 * IDEAL_STEPS, seed=0)
    best = best_rate(world_of(slots=1000, bound=1), lengths)
    assert best.without_wait_steps_per_s == pytest.approx(2 / (10.0 + 1.0 + 60.0), rel=1e-3)
    assert best.steps_per_s == pytest.approx(best.without_wait_steps_per_s, rel=0.01)


def test_scarce_slots_lower_the_best_rate() -> None:
    lengths = drawn(LONG_TAIL, 2, 8 * IDEAL_STEPS, seed=0)
    scarce, ample = (best_rate(world_of(slots=slots, bound=1), lengths) for slots in (6, 1000))
    assert scarce.steps_per_s < 0.95 * ample.steps_per_s


def test_no_rate_is_above_that_of_the_trainer() -> None:
    lengths = drawn(LONG_TAIL, 2, 8 * IDEAL_STEPS, seed=0)
    best = best_rate(world_of(slots=1000, bound=20), lengths)
    assert best.steps_per_s == best.without_wait_steps_per_s == 1 / 10.0


def test_dropping_late_arrivals_shows_as_discards_and_as_shorter_lengths() -> None:
    world = world_of(slots=64, bound=1)
    simulator = Simulator(world, Lengths(LONG_TAIL, 2, 0), Peer(Rule.DROP, world), 0)
    outcome = simulate(simulator, Window(warmup=10, steps=100), Best(steps_per_s=0.1, without_wait_steps_per_s=0.1))
    assert outcome.violations == 0
    assert outcome.discarded > 0.05
    assert outcome.length_bias_first < -0.1
    assert outcome.num_open == 0


def test_a_loop_that_keeps_everything_has_neither_discards_nor_bias() -> None:
    world = world_of(slots=64, bound=0)
    simulator = Simulator(world, Lengths(LONG_TAIL, 2, 0), Peer(Rule.SYNCHRONOUS, world), 0)
    outcome = simulate(simulator, Window(warmup=10, steps=50), Best(steps_per_s=0.1, without_wait_steps_per_s=0.1))
    assert (outcome.violations, outcome.discarded, outcome.length_bias) == (0, 0.0, 0.0)
    assert outcome.num_groups == 50 * 8
    assert outcome.busy == pytest.approx(outcome.steps_per_s * world.step_s)
