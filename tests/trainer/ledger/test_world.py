"""The ledger's promises, whatever trainers, gateways, workers and links do: see tests/support/ledger/world.py."""

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.support.cases.examples import examples
from tests.support.cases.tiers import rest_is_slow
from tests.support.ledger.world import World
from trainer.ledger.values import LedgerLimits

ACTIONS = {
    "up_arrives": 8,
    "down_arrives": 8,
    "all_arrives": 8,
    "link_breaks": 1,
    "worker_comes": 3,
    "worker_says_it_again": 1,
    "worker_goes": 1,
    "worker_starts": 10,
    "worker_finishes": 10,
    "worker_works_off": 6,
    "worker_fails": 1,
    "worker_lies": 3,
    "worker_repeats": 1,
    "all_goes_well": 6,
    "gateway_sends": 2,
    "gateway_restarts": 1,
    "trainer_moves": 8,
    "trainer_saves": 3,
    "trainer_crashes": 1,
    "asks_for_evaluation": 1,
    "time_passes": 3,
    "seconds_pass": 5,
}
"""The actions of the world, each with its weight among them."""

NUMBERS = st.integers(0, 14)


def limits(
    groups: int, size: int, bound: int, steps: int, depth: float | None, room: float, **changed: Any
) -> LedgerLimits:
    tokens = 4
    return LedgerLimits(
        groups_per_step=groups,
        group_size=size,
        bound=bound,
        steps=steps,
        lease_timeout_s=10.0,
        max_hold_s=4.0,
        max_sample_tokens=tokens,
        intake_tokens=int(tokens * size * groups * room),
        depth=depth,
        **changed,
    )


class LedgerMachine(RuleBasedStateMachine):
    world: World

    @initialize(
        groups=st.integers(1, 2),
        size=st.integers(1, 3),
        bound=st.integers(0, 3),
        steps=st.integers(1, 6),
        depth=st.sampled_from([None, 1.0, 1.5, 3.0]),
        room=st.sampled_from([1.0, 1.25, 1.5, 2.0, 4.0]),
        filters=st.booleans(),
        room_of_z=st.integers(1, 5),
    )
    def begin(
        self,
        groups: int,
        size: int,
        bound: int,
        steps: int,
        depth: float | None,
        room: float,
        filters: bool,
        room_of_z: int,
    ) -> None:
        self.world = World(
            limits(groups, size, bound, steps, depth, room, filter_uniform=filters, max_filtered_per_step=2)
        )
        self.room_of_z = room_of_z
        self.world.worker_comes(0, 4)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain(self.room_of_z)
            self.world.check_determinism()


def _rule_of(action: str) -> Any:
    def happens(self: LedgerMachine, n: int, m: int) -> None:
        getattr(self.world, action)(n, m)

    happens.__name__ = action
    return rule(n=NUMBERS, m=NUMBERS)(happens)


for _action in ACTIONS:
    setattr(LedgerMachine, _action, _rule_of(_action))

LedgerMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=60, deadline=None)
test_no_promise_is_broken_whatever_happens = LedgerMachine.TestCase


def test_batches_of_long_walks_have_samples_of_several_policies() -> None:
    assert sum(_walk(seed).num_mixed for seed in range(12)) > 20


def test_samples_are_leased_twice_on_long_walks() -> None:
    assert sum(_walk(seed).oracle.num_hedges for seed in range(12)) > 15


@pytest.mark.parametrize("seed", rest_is_slow(range(24), quick=8))
def test_no_promise_is_broken_on_a_long_walk(seed: int) -> None:
    _walk(seed)


def _walk(seed: int) -> World:
    chance = random.Random(seed)
    world = World(
        limits(
            groups=chance.randint(1, 3),
            size=chance.randint(1, 4),
            bound=chance.randint(0, 3),
            steps=20,
            depth=chance.choice([None, 1.0, 2.0]),
            room=chance.choice([1.0, 1.3, 1.6, 2.0, 4.0]),
            filter_uniform=chance.random() < 0.5,
        )
    )
    for action in chance.choices(list(ACTIONS), list(ACTIONS.values()), k=600):
        getattr(world, action)(chance.randrange(15), chance.randrange(15))
    world.drain(chance.randint(1, 5))
    world.check_determinism()
    return world
