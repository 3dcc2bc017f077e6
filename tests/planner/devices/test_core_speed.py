"""The probe recovers a device from synthetic times, and measures a real core within its time limit."""

from itertools import count

import pytest

from planner.devices import layer
from planner.devices.core_speed import ROWS, MeasuredSpeed, cpu_of, measure, probe

PEAK, STREAM, SATURATION = 1e11, 1.5e10, 12.0


def _made() -> MeasuredSpeed:
    products = tuple((rows, 2 * 1024 * 1024 * (rows + SATURATION) / PEAK) for rows in (*ROWS, 1 << 20))
    attention = tuple((long, long * (1e-7 + 5e-9 * long)) for long in (64, 512))
    return MeasuredSpeed(product_s=products, stream_bytes_per_s=STREAM, attention_s=attention, operation_s=1e-6)


def test_the_device_explains_the_times_it_was_made_of() -> None:
    gpu = cpu_of(_made(), memory_bytes=1 << 30)
    assert gpu.is_cpu
    assert gpu.memory_bytes == 1 << 30
    for rows, seconds in _made().product_s:
        found = layer.matmul_s(gpu, flop=2.0 * 1024 * 1024 * rows, moved_bytes=0.0, rows=float(rows))
        assert found == pytest.approx(seconds, rel=0.01)
    assert gpu.efficiency.attention_saturation_tokens == pytest.approx(20.0)
    assert gpu.efficiency.layer_overhead_s == pytest.approx(950e-6)


def test_float32_weights_stream_at_half_the_rate_of_half_precision_ones() -> None:
    gpu = cpu_of(_made(), memory_bytes=1 << 30)
    assert layer.matmul_s(gpu, flop=0.0, moved_bytes=2.0 * 10**9, rows=1.0) == pytest.approx(4e9 / STREAM)


def test_it_ends_when_its_clock_says_so() -> None:
    """Each look at the clock takes a second here: three repeats of each kind of work, and no more."""
    ticks = count()
    measured = measure(0.001, lambda: float(next(ticks)), lambda: float(next(ticks)))
    assert next(ticks) < 12 * (len(ROWS) + 4)
    assert measured.operation_s > 0


def test_this_host_is_a_device() -> None:
    import time

    gpu = probe(0.5, time.monotonic, cpu_s=time.process_time)
    assert gpu.name == "cpu"
    assert 1e8 < gpu.matmul_flop_per_s < 1e13
    assert 1e8 < gpu.memory_bytes_per_s < 1e12
    assert 0 < gpu.efficiency.attention_fraction <= 1
