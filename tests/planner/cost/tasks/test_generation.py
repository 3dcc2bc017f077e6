"""One replica: continuous batching and phases against renewal theory, conservation of work, and cases by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.tasks.generation import SLOTS, Replica, fresh_tails, mean_age, mean_context
from planner.problem.workload import Workload
from tests.support.planner.cost import GPU, MODEL, workload

LENGTHS = st.lists(st.integers(1, 2000), min_size=1, max_size=20)


def replica(of: Workload, tensor: int = 1) -> Replica:
    return Replica(of, GPU, tensor)


def test_a_running_sequence_of_equal_lengths_is_half_done() -> None:
    equal = workload(lengths=[400])
    assert mean_age(equal) == 200
    assert mean_context(equal) == 100 + 200


def test_long_sequences_are_met_more_often() -> None:
    assert mean_age(workload(lengths=[100, 300])) == pytest.approx((100**2 + 300**2) / 2 / 400)


@given(LENGTHS)
def test_sequences_that_start_together_make_all_their_tokens(lengths: list[int]) -> None:
    of = workload(lengths=lengths)
    tails = fresh_tails(of)
    assert float((tails.tokens * tails.alive).sum()) == pytest.approx(of.completion_tokens.mean, rel=1e-9)


def test_a_sample_takes_its_steps_shared_by_the_batch_and_its_prefill() -> None:
    of = workload(lengths=[400])
    one = replica(of)
    step_s = one.step_s(np.array([8.0]), np.array([mean_context(of)]))[0]
    assert one.sample_s[SLOTS.index(8)] == pytest.approx(400 * step_s / 8 + one.prefill_s)


def test_a_step_reads_the_weights_and_the_caches() -> None:
    """At half the bandwidth: 2 bytes for each entry of 6 layers' matrices and of the head; 2 x 2 x 6 x 1024 bytes of
    cache for each token."""
    of = workload(lengths=[400])
    one = replica(of)
    fresh, grown = one.step_s(np.array([1.0, 1.0]), np.array([0.0, 1000.0]))
    weights = 2 * (6 * MODEL.matmul_params_per_layer + MODEL.embedding_params)
    assert fresh == pytest.approx(weights / 1e12, rel=0.02)
    assert grown - fresh == pytest.approx(1000 * 2 * 2 * 6 * 1024 / 1e12)


def test_a_group_is_done_with_its_longest_sample_and_waits_where_it_does_not_fit() -> None:
    of = replace(workload(lengths=[400]), group_size=4)
    one = replica(of)
    alone, together = SLOTS.index(1), SLOTS.index(4)
    assert one.group_s[together] == pytest.approx(4 * one.sample_s[together] + one.prefill_s)
    assert one.group_s[alone] == pytest.approx((3 + 1) * one.sample_s[alone] + one.prefill_s)


def test_a_phase_of_one_sample_lasts_as_long_as_the_longest_may() -> None:
    of = workload(lengths=[100, 700])
    one = replica(of)
    contexts = fresh_tails(of).context
    by_hand = fresh_tails(of).tokens @ one.step_s(np.ones(len(contexts)), contexts)
    assert one.first_s == pytest.approx(by_hand + one.prefill_s)


def test_equal_lengths_in_two_waves_take_longer_than_one_and_no_less_than_their_work() -> None:
    one = replica(workload(lengths=[400]))
    place = SLOTS.index(8)
    wave_s = one.phase_s(8, place)
    assert wave_s == pytest.approx(8 * one.sample_s[place], rel=1e-6)
    assert 2 * wave_s <= one.phase_s(16, place) * (1 + 1e-9)


@settings(max_examples=15)
@given(LENGTHS, st.sampled_from(SLOTS), st.floats(1, 2000))
def test_no_phase_beats_engines_that_are_always_full(lengths: list[int], slots: int, share: float) -> None:
    one = replica(workload(lengths=lengths))
    place = SLOTS.index(slots)
    assert one.phase_s(share, place) >= share * one.sample_s[place] * (1 - 1e-9)
    assert one.phase_s(share, place) >= one.first_s * (1 - 1e-9)


@settings(max_examples=15)
@given(LENGTHS)
def test_shares_invert_phases_and_grow_with_time_and_slots(lengths: list[int]) -> None:
    one = replica(workload(lengths=lengths))
    seconds = one.first_s * np.geomspace(1, 200, 40)
    made = one.shares(seconds)
    assert (np.diff(made, axis=1) >= -1e-9).all()
    assert (np.diff(made, axis=0) >= 0).all()
    for place in (3, 12, len(SLOTS) - 1):
        for at_s, share in zip(seconds[5::9], made[place, 5::9], strict=True):
            assert min(one.phase_s(share, k) for k in range(place + 1)) <= at_s * 1.02


def test_slots_are_what_caches_hold_of_mean_context_beside_the_rest() -> None:
    of = workload(lengths=[400])
    each = 2 * 2 * 6 * 1024 * 300
    places = replica(of).slots(np.array([each * 1.6, each * 1.7, each * 9.5, each * 1e9]))
    assert [SLOTS[place] if place >= 0 else 0 for place in places] == [0, 1, 8, SLOTS[-1]]


def test_caches_that_cannot_hold_the_longest_sequence_hold_none() -> None:
    of = workload(lengths=[100] * 19 + [2000])
    each = 2 * 2 * 6 * 1024
    assert list(replica(of).slots(np.array([2099.0, 2101.0]) * each) >= 0) == [False, True]


@given(LENGTHS, st.lists(st.floats(0, 1e9), min_size=2, max_size=20))
def test_more_memory_never_means_fewer_slots(lengths: list[int], free: list[float]) -> None:
    assert (np.diff(replica(workload(lengths=lengths)).slots(np.sort(free))) >= 0).all()
