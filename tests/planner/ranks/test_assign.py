"""Machines and rings of whole placements."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.answer.placement import Placement
from planner.cost.tables.cost_tables import CostTables
from planner.files.importers.published import HetrlScenario
from planner.methods.baselines.sampling import sample
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import TRAINING
from planner.ranks.assign import RankAssignment, assign
from planner.ranks.links import MachineLinks, fleet_rate, inside_rate
from tests.support.planner.searches import problem

PRICES = CostTables(problem(HetrlScenario.SINGLE_REGION))
PLACEMENTS = sample(PRICES, np.random.default_rng(3), 12)


def shuffled_racks(at: DeviceClass, seed: int) -> np.ndarray:
    rack = np.random.default_rng(seed).permutation(np.arange(at.num_machines) // 2)
    return np.where(rack[:, None] == rack[None, :], 1.0, 0.25) * at.fabric_bytes_per_s


def check_seats(placement: Placement, ranks: RankAssignment) -> None:
    """Each unit on devices of one machine that nobody else has."""
    taken: set[tuple[str, int, int]] = set()
    for g, group in enumerate(placement.groups):
        for p, pool in enumerate(group.pools):
            at = PRICES.classes[pool.device_class]
            for unit in range(pool.num_units):
                seat = ranks.seats[g, p, unit]
                assert len(seat.devices) == pool.unit_gpus
                assert seat.machine < at.num_machines
                assert max(seat.devices) < at.gpus_per_machine
                held = {(at.key, seat.machine, device) for device in seat.devices}
                assert not held & taken
                taken |= held
    assert len(ranks.seats) == sum(pool.num_units for group in placement.groups for pool in group.pools)


@settings(max_examples=15, deadline=None)
@given(which=st.integers(0, len(PLACEMENTS) - 1), is_measured=st.booleans(), seed=st.integers(0, 1 << 20))
def test_every_placement_of_the_oracle_can_be_seated(which: int, is_measured: bool, seed: int) -> None:
    measured = {(key, key): shuffled_racks(at, seed) for key, at in PRICES.classes.items()}
    links = MachineLinks(measured=measured if is_measured else {})
    ranks = assign(PRICES, PLACEMENTS[which], links, seed=seed)
    check_seats(PLACEMENTS[which], ranks)
    assert assign(PRICES, PLACEMENTS[which], links, seed=seed) == ranks


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_with_equal_links_rings_and_hops_are_as_fast_as_the_oracle_takes_them(placement: Placement) -> None:
    for ring in assign(PRICES, placement).rings:
        pools = placement.groups[ring.group].pools
        classes = [PRICES.classes[pool.device_class] for pool in pools]
        between = [fleet_rate(PRICES, a, b) for a in classes for b in classes]
        slowest = min([*between, *(inside_rate(at) for at in classes)])
        assert ring.slowest_link_bytes_per_s is None or ring.slowest_link_bytes_per_s >= slowest
        assert ring.slowest_hop_bytes_per_s is None or ring.slowest_hop_bytes_per_s >= slowest
        one = len(pools) == 1 and pools[0].num_gpus <= classes[0].gpus_per_machine
        fits_alone = one and len(placement.groups) == 1
        if fits_alone and ring.slowest_link_bytes_per_s is not None:
            assert ring.slowest_link_bytes_per_s == inside_rate(classes[0])


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_ring_visits_every_pipeline_once_and_changes_pools_twice(placement: Placement) -> None:
    for ring in assign(PRICES, placement).rings:
        group = placement.groups[ring.group]
        pipelines = {
            (p, d)
            for p, pool in enumerate(group.pools)
            for d in range(pool.num_units // next(of.pipeline for task, of in pool.layouts if task in TRAINING))
        }
        assert set(ring.order) == pipelines
        assert len(ring.order) == len(pipelines)
        changes = sum(a[0] != b[0] for a, b in zip(ring.order, (*ring.order[1:], ring.order[0]), strict=True))
        assert changes == (2 if len(group.pools) == 2 else 0)
