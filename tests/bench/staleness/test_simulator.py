"""The simulator against cases that are known in closed form, and what must hold whatever the scheduler does."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from bench.staleness.lengths import Lengths, Source
from bench.staleness.ours import Ours
from bench.staleness.peers import Peer, Rule
from bench.staleness.simulator import Fate, Scheduler, Simulator
from bench.staleness.world import Link, Outages, World

FRAME_S = 5.0 * 8 / 0.2e9  # of one token
STRICT = ("ours", Rule.PRIME_RL, Rule.SYNCHRONOUS, Rule.DROP)


def world_of(**changed: Any) -> World:
    """One free region, one token a second, nothing that takes time but samples and steps."""
    values: dict[str, Any] = {
        "links": {"here": Link(one_way_s=0.0, throughput_gbit_per_s=1.0)},
        "worker_regions": ("here",) * 4,
        "slots": (64,) * 4,
        "tokens_per_s": 1.0,
        "sample_s": 10.0,
        "step_s": 5.0,
        "groups_per_step": 4,
        "group_size": 2,
        "bound": 1,
        "deaths_per_hour": 0.0,
        "encode_s": 0.0,
        "load_s": 0.0,
        "relay_s": 0.0,
        "delta_bytes": 0.0,
    }
    return World(**(values | changed))


def lossy_world() -> World:
    far = Link(one_way_s=0.4, throughput_gbit_per_s=1.0)
    return world_of(
        links={"here": Link(one_way_s=0.0, throughput_gbit_per_s=1.0), "far": far},
        worker_regions=("here", "far", "far"),
        slots=(6, 4, 4),
        bound=2,
        deaths_per_hour=40.0,
        replacement_s=20.0,
        detection_s=3.0,
        load_s=1.0,
        step_s=20.0,
        outages=Outages(every_s=150.0, length_s=30.0),
    )


EQUAL = Source(name="equal", groups=np.full((1, 2), 10))
UNEQUAL = Source(name="unequal", groups=np.array([[3, 5], [20, 40], [8, 100], [1, 2], [30, 30]]))


def scheduler_of(policy: str, world: World) -> Scheduler:
    return Ours(world) if policy == "ours" else Peer(Rule(policy), world)


def run(world: World, policy: str, source: Source, until_version: int, seed: int = 0) -> Simulator:
    simulator = Simulator(world, Lengths(source, world.group_size, seed), scheduler_of(policy, world), seed)
    simulator.run(until_version)
    return simulator


def periods_s(simulator: Simulator) -> list[float]:
    begins = [step.begin_s for step in simulator.steps]
    return [after - before for before, after in pairwise(begins[20:])]


def test_one_slot_far_away_follows_the_timetable_computed_by_hand() -> None:
    far = Link(one_way_s=2.0, throughput_gbit_per_s=1.0)
    world = world_of(
        links={"far": far},
        worker_regions=("far",),
        slots=(1,),
        step_s=3.0,
        groups_per_step=1,
        group_size=1,
        bound=0,
        encode_s=1.0,
        load_s=1.0,
    )
    simulator = run(world, Rule.SYNCHRONOUS, Source(name="ten", groups=np.array([[10]])), 3)
    # hello 0-2, lease 2-4, sample 4-14, result 14-16, step 16-19, weights 19-23 while the lease waits, sample 23-33
    begins = [step.begin_s for step in simulator.steps]
    assert begins == pytest.approx([16.0, 35.0, 54.0], abs=1e-3)
    first, second = (simulator.attempts[group][0] for group in (0, 1))
    assert (first.begin_s, first.end_s, first.version) == pytest.approx((4.0, 14.0, 0))
    assert (second.begin_s, second.end_s, second.version) == pytest.approx((23.0, 33.0, 1), abs=1e-3)


def test_a_synchronous_step_takes_training_weights_group_and_delivery() -> None:
    world = world_of(bound=0, encode_s=1.0, load_s=2.0)
    assert periods_s(run(world, Rule.SYNCHRONOUS, EQUAL, 30)) == pytest.approx([5.0 + 3.0 + 10.0] * 9, abs=1e-3)


@pytest.mark.parametrize(("bound", "expected_s"), [(0, 15.0), (1, 7.5), (2, 5.0), (4, 5.0)])
def test_with_room_and_no_latency_the_rule_of_the_design_is_met(bound: int, expected_s: float) -> None:
    simulator = run(world_of(bound=bound), "ours", EQUAL, 60)
    span_s = simulator.steps[50].begin_s - simulator.steps[20].begin_s
    assert span_s / 30 == pytest.approx(expected_s, rel=1e-3)


def test_too_few_slots_limit_the_rate_to_what_they_produce() -> None:
    world = world_of(slots=(2, 2, 2, 2), bound=4, groups_per_step=8, sample_s=10.0)
    simulator = run(world, "ours", EQUAL, 60)
    span_s = simulator.steps[50].begin_s - simulator.steps[20].begin_s
    assert span_s / 30 == pytest.approx(8 * 2 * 10 / 8, rel=0.01)


@pytest.mark.parametrize("policy", ["ours", *Rule])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_attempt_ends_once_and_groups_are_trained_whole(policy: str, seed: int) -> None:
    world = lossy_world()
    simulator = run(world, policy, UNEQUAL, 40, seed)
    assert simulator.num_deaths > 0
    trained: Counter[int] = Counter()
    for group, attempts in simulator.attempts.items():
        samples = [attempt.sample for attempt in attempts if attempt.fate is Fate.TRAINED]
        assert len(samples) in (0, world.group_size)
        assert len(set(samples)) == len(samples)
        trained[group] = len(samples)
        for attempt in attempts:
            assert (attempt.version < 0) == (attempt.begin_s < 0.0)
            if attempt.fate in (Fate.TRAINED, Fate.DROPPED):
                assert attempt.tokens == attempt.length
            if attempt.fate in (Fate.LOST, Fate.CANCELLED):
                assert 0.0 <= attempt.tokens < attempt.length
    assert trained.total() == len(simulator.steps) * world.groups_per_step * world.group_size
    assert sum(sum(step.samples_by_age.values()) for step in simulator.steps) == trained.total()


@pytest.mark.parametrize("policy", STRICT)
def test_policies_that_promise_the_bound_keep_it(policy: str) -> None:
    simulator = run(lossy_world(), policy, UNEQUAL, 60)
    assert max(age for step in simulator.steps for age in step.samples_by_age) <= 2


def test_the_admission_formula_alone_does_not_keep_the_bound() -> None:
    simulator = run(lossy_world(), Rule.AREAL, UNEQUAL, 60)
    assert max(age for step in simulator.steps for age in step.samples_by_age) > 2


def test_a_lost_sample_is_produced_again_and_its_group_is_trained() -> None:
    simulator = run(lossy_world(), "ours", UNEQUAL, 60)
    again = [attempts for attempts in simulator.attempts.values() if any(a.fate is Fate.LOST for a in attempts)]
    assert any(attempt.fate is Fate.TRAINED and attempt.number > 0 for attempts in again for attempt in attempts)


def test_the_same_seed_is_the_same_run() -> None:
    one, other = (run(lossy_world(), "ours", UNEQUAL, 30, seed=7) for _ in range(2))
    assert one.steps == other.steps
    assert run(lossy_world(), "ours", UNEQUAL, 30, seed=8).steps != one.steps


def test_what_is_sent_into_an_outage_arrives_after_it() -> None:
    far = Link(one_way_s=1.0, throughput_gbit_per_s=1.0)
    world = world_of(
        links={"far": far},
        worker_regions=("far",),
        slots=(1,),
        groups_per_step=1,
        group_size=1,
        bound=0,
        outages=Outages(every_s=5.0, length_s=60.0),
    )
    simulator = run(world, Rule.SYNCHRONOUS, Source(name="ten", groups=np.array([[10]])), 1)
    assert simulator.steps[0].begin_s > 60.0, "the result of a sample that ended at 12 s waited"
    assert simulator.attempts[0][0].end_s == pytest.approx(12.0)


def test_a_scheduler_that_never_trains_is_found_out() -> None:
    class Idle:
        def hears(self, message: object, now_s: float) -> tuple[()]:
            return ()

    world = world_of()
    with pytest.raises(RuntimeError, match="stuck"):
        Simulator(world, Lengths(EQUAL, 2, 0), Idle(), 0).run(1)
