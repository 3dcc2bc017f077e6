"""Collectives: closed forms of rings, and a machine's own collectives with latency and pipelining."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.devices import collective
from planner.problem.hardware import Efficiency, GpuType

FIT = Efficiency(
    matmul_fraction=0.5,
    saturation_tokens=0.0,
    memory_fraction=0.5,
    link_fraction=0.5,
    layer_overhead_s=0.0,
    collective_latency_s=1e-5,
)
GPU = GpuType(
    name="made-up",
    memory_bytes=80 << 30,
    memory_bytes_per_s=2e12,
    matmul_flop_per_s=4e14,
    link_bytes_per_s=2e11,
    efficiency=FIT,
)


def test_a_ring_moves_its_share_of_the_payload_once_each_way() -> None:
    found = collective.all_reduce_s(payload_bytes=8e9, num=4, bytes_per_s=1e9, latency_s=0.5)
    assert found == pytest.approx(2 * 3 * (2.0 + 0.5))
    assert collective.all_gather_s(payload_bytes=8e9, num=4, bytes_per_s=1e9, latency_s=0.5) == pytest.approx(3 * 2.5)


def test_alone_nothing_is_moved() -> None:
    assert collective.all_reduce_s(payload_bytes=8e9, num=1, bytes_per_s=1e9, latency_s=0.5) == 0
    assert collective.all_gather_s(payload_bytes=8e9, num=1, bytes_per_s=1e9, latency_s=0.5) == 0
    assert collective.machine_all_reduce_s(GPU, payload_bytes=8e9, num=1) == 0


def test_inside_a_machine_start_and_flow_and_their_geometric_mean_add_up() -> None:
    flow = 4e6 / 1e11
    assert collective.machine_all_reduce_s(GPU, payload_bytes=4e6, num=2) == pytest.approx(
        1e-5 + flow + (1e-5 * flow) ** 0.5
    )


def test_a_shared_bus_slows_more_devices_and_a_switch_speeds_them_up_to_the_nominal_rate() -> None:
    bus = replace(GPU, efficiency=replace(FIT, link_sharing=1.0))
    switch = replace(GPU, efficiency=replace(FIT, link_sharing=-0.3))
    assert collective.machine_rate(bus, 8) == pytest.approx(collective.machine_rate(bus, 2) / 4)
    assert collective.machine_rate(GPU, 2) == 1e11
    assert 1e11 < collective.machine_rate(switch, 8) < 2e11
    assert collective.machine_rate(replace(GPU, efficiency=replace(FIT, link_sharing=-3.0)), 8) == 2e11


def test_arrays_are_many_floats() -> None:
    sizes = np.array([1e3, 1e6, 1e9])
    np.testing.assert_allclose(
        collective.machine_all_reduce_s(GPU, payload_bytes=sizes, num=4),
        [collective.machine_all_reduce_s(GPU, payload_bytes=size, num=4) for size in sizes.tolist()],
    )
    assert not collective.machine_all_reduce_s(GPU, payload_bytes=sizes, num=1).any()


@given(small=st.floats(0, 1e10), more=st.floats(0, 1e10), num=st.sampled_from([2, 4, 8]))
def test_more_bytes_take_no_less(small: float, more: float, num: int) -> None:
    before = collective.machine_all_reduce_s(GPU, payload_bytes=small, num=num)
    assert collective.machine_all_reduce_s(GPU, payload_bytes=small + more, num=num) >= before
