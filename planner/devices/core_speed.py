"""Measurement of one core of this host with numpy, in a few seconds, as a device type for `planner.devices`.

The measured work is what the functions of `planner.devices` predict: products of several rows with a matrix, one row
with a matrix that no cache holds (decoding), attention over short and long sequences, and operations so small that they
are only overhead. Clocks are passed in. With a clock of the process's CPU time, rates are those of one core, however
many threads the library has and whatever else runs; with a wall clock they are what the process gets.

Engines on CPUs compute in float32 while `planner.devices` counts two bytes per element. A memory fraction of one half
compensates for that.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.problem.hardware import Efficiency, GpuType

Clock = Callable[[], float]
"""Function that returns the current time in seconds."""
NAME = "cpu"
"""Name of the measured type."""
MEMORY_BYTES = 4 << 30
"""Memory of one worker process if it is not stated."""
OPERATIONS_PER_LAYER = 950
"""Number of numpy's smallest operations (0.5 us) that take as long as one layer of `transformers`' Qwen3 in torch (470
us, hidden size 128, one token, one thread). Such a layer has hardly any arithmetic."""
ROWS = (2, 8, 32, 128, 512)
"""Numbers of rows of the measured products."""
_SIDE = 1024
"""Side of the square matrix in products."""
_STREAM_SIDE = 4096
"""Side of the square matrix that is multiplied with one row; 64 MiB, larger than caches."""
_HEADS, _WIDTH = 4, 64
"""Number of heads of the measured attention, and width of one head."""
_SEQUENCES = (64, 512)
"""Sequence lengths of the measured attention."""
_COLLECTIVE_S = 100e-6
"""Latency of a collective between processes of one host (gloo over loopback). The order of magnitude is assumed, not
measured."""
_SHARES = {"products": 0.4, "stream": 0.2, "attention": 0.25, "operations": 0.05}
"""Shares of the time limit by kind of work; the rest is for making arrays."""
_LEAST_REPEATS = 3
"""Least number of repetitions of each kind of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """Least seconds of each kind of work over several repetitions."""

    product_s: tuple[tuple[int, float], ...]
    """Pairs (rows, seconds) of float32 products with a square matrix of side `_SIDE`."""
    stream_bytes_per_s: float
    """Rate at which a matrix is read that is multiplied with one row."""
    attention_s: tuple[tuple[int, float], ...]
    """Pairs (length, seconds) of attention over a whole sequence, masked part included."""
    operation_s: float
    """Seconds of one smallest operation."""


def probe(limit_s: float, now_s: Clock, *, cpu_s: Clock | None = None, memory_bytes: int = MEMORY_BYTES) -> GpuType:
    """Measure for about `limit_s` seconds of the clock `now_s` and return the device type.

    `cpu_s` is the clock that times the work; None stands for `now_s`.
    """
    return cpu_of(measure(limit_s, now_s, cpu_s or now_s), memory_bytes=memory_bytes)


def cpu_of(measured: MeasuredSpeed, *, memory_bytes: int) -> GpuType:
    """Return the device type whose predictions match these times."""
    flop = 2.0 * _SIDE * _SIDE
    rates = [(rows, flop * rows / seconds) for rows, seconds in measured.product_s]
    # The best measured rate is the peak, so large products reach all of it.
    peak = max(rate for _, rate in rates)
    # A product of n rows reaches peak n / (n + saturation): solve for the saturation at each n and take the median.
    saturation = float(np.median([rows * (peak / rate - 1) for rows, rate in rates]))
    fraction, attention_saturation = _attention(measured.attention_s, peak)
    efficiency = Efficiency(
        matmul_fraction=1.0,
        saturation_tokens=saturation,
        memory_fraction=0.5,
        link_fraction=0.5,
        layer_overhead_s=OPERATIONS_PER_LAYER * measured.operation_s,
        collective_latency_s=_COLLECTIVE_S,
        attention_fraction=fraction,
        attention_saturation_tokens=attention_saturation,
        attention_overhead_s=0.0,
    )
    return GpuType(
        name=NAME,
        memory_bytes=memory_bytes,
        memory_bytes_per_s=measured.stream_bytes_per_s,
        matmul_flop_per_s=peak,
        link_bytes_per_s=measured.stream_bytes_per_s,
        efficiency=efficiency,
        is_cpu=True,
    )


def _attention(times: tuple[tuple[int, float], ...], peak: float) -> tuple[float, float]:
    """Return (fraction of the peak for the unmasked half, sequence length at which half of it is reached).

    Seconds per token are fitted as a + b x length: b gives the fraction, and a / b the length.
    """
    (short, short_s), (long, long_s) = times
    # Noise may make long sequences look faster per token than short ones; neither number may be negative.
    slope = max((long_s / long - short_s / short) / (long - short), 1e-15)
    start = max(long_s / long - slope * long, 0.0)
    fraction = 2.0 * _HEADS * _WIDTH / slope / peak
    return min(1.0, fraction), min(start / slope, 8.0 * long)


def measure(limit_s: float, now_s: Clock, cpu_s: Clock) -> MeasuredSpeed:
    """Run each kind of work several times for its share of the limit."""
    # Random values, since zeros and denormal numbers may run at another speed.
    draw = np.random.default_rng(0)

    def array(*shape: int) -> npt.NDArray[np.float32]:
        return draw.random(shape, dtype=np.float32)

    def best_s(work: Callable[[], object], share_s: float) -> float:
        return _best_s(work, now_s, cpu_s, share_s)

    # Products, for the peak and for how many rows reach it.
    matrix = array(_SIDE, _SIDE)
    each = _SHARES["products"] * limit_s / len(ROWS)
    products = tuple((rows, best_s(_product(array(rows, _SIDE), matrix), each)) for rows in ROWS)
    # One row with a matrix larger than the caches: the rate of memory.
    whole, row = array(_STREAM_SIDE, _STREAM_SIDE), array(_STREAM_SIDE)
    stream = best_s(_product(whole, row), _SHARES["stream"] * limit_s)
    each = _SHARES["attention"] * limit_s / len(_SEQUENCES)
    # Attention on two lengths, for slope and intercept of seconds per token.
    attention = tuple((long, best_s(_attend(array(3, _HEADS, long, _WIDTH)), each)) for long in _SEQUENCES)
    # A thousand small operations a run, since one is shorter than a clock's resolution.
    small = array(8)
    operation = best_s(lambda: [np.add(small, small) for _ in range(1000)], _SHARES["operations"] * limit_s) / 1000
    return MeasuredSpeed(
        product_s=products,
        stream_bytes_per_s=whole.nbytes / stream,
        attention_s=attention,
        operation_s=operation,
    )


def _product(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> Callable[[], object]:
    return lambda: a @ b


def _attend(qkv: npt.NDArray[np.float32]) -> Callable[[], object]:
    queries, keys, values = qkv

    def work() -> object:
        scores = queries @ keys.swapaxes(1, 2)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        return scores @ values

    return work


def _best_s(work: Callable[[], object], now_s: Clock, cpu_s: Clock, share_s: float) -> float:
    """Return the least seconds of one run. The first run is a warm-up and does not count."""
    until = now_s() + share_s
    work()
    best, repeats = float("inf"), 0
    while repeats < _LEAST_REPEATS or now_s() < until:
        begun = cpu_s()
        work()
        best, repeats = min(best, cpu_s() - begun), repeats + 1
    # A coarse clock may show 0.
    return max(best, 1e-9)
