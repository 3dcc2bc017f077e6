"""The order of a mesh's units, compared with brute force, and on links between racks."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.ranks.mesh import Demand, arrange, seconds_of

SHAPES = [(4, 1), (6, 1), (2, 2), (3, 2), (2, 3), (1, 5)]


def drawn(seed: int, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, Demand]:
    """Machines of slots, rates between machines, bytes: any links at all."""
    rng = np.random.default_rng(seed)
    num = shape[0] * shape[1] + int(rng.integers(0, 2))
    per_machine = int(rng.integers(1, 3))
    machine_of = np.repeat(np.arange(num), per_machine)[:num]
    rates = rng.uniform(1.0, 10.0, (num, num))
    rates = np.minimum(rates, rates.T)
    np.fill_diagonal(rates, 40.0)
    return machine_of, rates, Demand(hop_bytes=float(rng.uniform(0, 2)), ring_bytes=float(rng.uniform(0, 2)))


def brute_force(machine_of: np.ndarray, rates: np.ndarray, shape: tuple[int, int], demand: Demand) -> float:
    used = shape[0] * shape[1]
    return min(
        seconds_of(machine_of[list(slots)].reshape(shape), rates, demand)
        for slots in permutations(range(len(machine_of)), used)
    )


@pytest.mark.parametrize("seed", range(12))
def test_small_meshes_are_ordered_as_well_as_any_order_does(seed: int) -> None:
    shape = SHAPES[seed % len(SHAPES)]
    machine_of, rates, demand = drawn(seed, shape)
    found = arrange(machine_of, rates, shape, demand, np.random.default_rng(0))
    assert found.seconds == pytest.approx(brute_force(machine_of, rates, shape, demand), rel=1e-6)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1 << 30), shape=st.sampled_from(SHAPES))
def test_an_order_uses_each_slot_once_and_says_its_own_seconds(seed: int, shape: tuple[int, int]) -> None:
    machine_of, rates, demand = drawn(seed, shape)
    found = arrange(machine_of, rates, shape, demand, np.random.default_rng(seed))
    assert found.slots.shape == shape
    assert len(np.unique(found.slots)) == found.slots.size
    assert found.seconds == pytest.approx(seconds_of(machine_of[found.slots], rates, demand))
    again = arrange(machine_of, rates, shape, demand, np.random.default_rng(seed))
    assert np.array_equal(again.slots, found.slots)


def test_pipelines_stay_inside_racks_whose_machines_are_numbered_at_random() -> None:
    rng = np.random.default_rng(3)
    rack = rng.permutation(np.arange(64) // 16)
    rates = np.where(rack[:, None] == rack[None, :], 10.0, 3.0)
    np.fill_diagonal(rates, 40.0)
    found = arrange(np.arange(64), rates, (16, 4), Demand(hop_bytes=1.0, ring_bytes=1.0), rng)
    assert all(len(set(rack[pipeline])) == 1 for pipeline in found.slots)
    assert found.seconds == pytest.approx(1 / 10 + 1 / 3)


def test_equal_links_make_every_order_equally_good() -> None:
    rates = np.full((6, 6), 5.0)
    found = arrange(np.arange(6), rates, (3, 2), Demand(hop_bytes=2.0, ring_bytes=1.0), np.random.default_rng(0))
    assert found.seconds == pytest.approx(2 / 5 + 1 / 5)
