"""Seconds of collectives, in rings inside a machine or over any slower link.

A ring over n members moves 2 (n - 1) / n of the payload for an all-reduce, and (n - 1) / n for a gather or a scatter
(Patarasuk and Yuan, JPDC 2009). Each hop takes a latency (alpha) and bytes / rate (beta). Payloads may be floats or
arrays. A collective of fewer than two members takes 0 seconds.

The functions with `machine_` in their name take link rate and latency from the fitted efficiency of the device type.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from planner.problem.hardware import GpuType

Q = TypeVar("Q", float, npt.NDArray[np.float64])
"""A number or an array."""
LATENCY_GROWTH = 0.6
"""Power of the number of devices with which the latency of a collective grows. Source: NCCL between 2 and 8 devices has
0.45 to 0.7."""


def all_reduce_s(*, payload_bytes: Q, num: int, bytes_per_s: float, latency_s: float) -> Q:
    """Return the seconds of a ring all-reduce over `num` members with equal links; `latency_s` is that of one hop."""
    if num < 2:
        return 0 * payload_bytes
    return 2 * (num - 1) * (payload_bytes / num / bytes_per_s + latency_s)


def all_gather_s(*, payload_bytes: Q, num: int, bytes_per_s: float, latency_s: float) -> Q:
    """Return the seconds of a ring all-gather, or of a reduce-scatter, which takes the same.

    `payload_bytes` is the size of the gathered whole.
    """
    if num < 2:
        return 0 * payload_bytes
    return (num - 1) * (payload_bytes / num / bytes_per_s + latency_s)


def machine_rate(gpu: GpuType, num: int) -> float:
    """Return the bytes per second of each of `num` devices of one machine in a ring.

    The result is at most the nominal rate of the link.
    """
    fit = gpu.efficiency
    share: float = fit.link_fraction if num <= 2 else fit.link_fraction * (2 / num) ** fit.link_sharing
    return gpu.link_bytes_per_s * min(1.0, share)


def machine_all_reduce_s(gpu: GpuType, *, payload_bytes: Q, num: int) -> Q:
    """Return the seconds of an all-reduce among `num` devices of one machine."""
    return _machine_s(gpu, 2 * (num - 1) / num * payload_bytes, num)


def _machine_s(gpu: GpuType, moved_bytes: Q, num: int) -> Q:
    """Return the seconds of a collective in which each device moves these bytes.

    A message in c chunks takes latency x c for its start and bytes / c for the last chunk. With the best c this adds
    twice the geometric mean of latency and transfer time; published NCCL times show half of that, so the factor is 1.
    """
    if num < 2:
        return 0 * moved_bytes
    growth: float = (num / 2) ** LATENCY_GROWTH
    start = gpu.efficiency.collective_latency_s * growth
    flow = moved_bytes / machine_rate(gpu, num)
    whole: Q = start + flow + (start * flow) ** 0.5
    return whole
