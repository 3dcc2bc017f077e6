"""Seconds of collectives: alpha-beta rings inside a machine and over any slower link.

Source: ring algorithms move 2 (n - 1) / n of the payload for an all-reduce, (n - 1) / n for a gather or a scatter
(Patarasuk and Yuan, JPDC 2009).
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from planner.question.hardware import GpuType

Q = TypeVar("Q", float, npt.NDArray[np.float64])
LATENCY_GROWTH = 0.6
"""Power of the number of devices that a collective's start grows with (NCCL between 2 and 8 devices: 0.45 to 0.7)."""


def all_reduce_s(*, payload_bytes: Q, num: int, bytes_per_s: float, latency_s: float) -> Q:
    """A ring over `num` members with equal links; `latency_s` of one hop."""
    if num < 2:
        return 0 * payload_bytes
    return 2 * (num - 1) * (payload_bytes / num / bytes_per_s + latency_s)


def all_gather_s(*, payload_bytes: Q, num: int, bytes_per_s: float, latency_s: float) -> Q:
    """`payload_bytes` is the gathered whole; a reduce-scatter takes the same."""
    if num < 2:
        return 0 * payload_bytes
    return (num - 1) * (payload_bytes / num / bytes_per_s + latency_s)


def machine_rate(gpu: GpuType, num: int) -> float:
    """Bytes a second of each of `num` devices of one machine in a ring; never more than the link's nominal rate."""
    fit = gpu.efficiency
    share: float = fit.link_fraction if num <= 2 else fit.link_fraction * (2 / num) ** fit.link_sharing
    return gpu.link_bytes_per_s * min(1.0, share)


def machine_all_reduce_s(gpu: GpuType, *, payload_bytes: Q, num: int) -> Q:
    """Among `num` devices of one machine."""
    return _machine_s(gpu, 2 * (num - 1) / num * payload_bytes, num)


def machine_all_gather_s(gpu: GpuType, *, payload_bytes: Q, num: int) -> Q:
    """Among `num` devices of one machine; a reduce-scatter takes the same."""
    return _machine_s(gpu, (num - 1) / num * payload_bytes, num)


def _machine_s(gpu: GpuType, moved_bytes: Q, num: int) -> Q:
    """Start, then the bytes; between them what pipelining costs: a message in c chunks takes start x c and bytes / c.

    The best c costs twice the geometric mean of both if chunks are free to choose; published NCCL times show half that.
    """
    if num < 2:
        return 0 * moved_bytes
    growth: float = (num / 2) ** LATENCY_GROWTH
    start = gpu.efficiency.collective_latency_s * growth
    flow = moved_bytes / machine_rate(gpu, num)
    whole: Q = start + flow + (start * flow) ** 0.5
    return whole
