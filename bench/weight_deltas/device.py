"""Comparing and compacting on an accelerator: its time over that of one read of both versions at the copy bandwidth.

    python -m bench.weight_deltas.device [num_elements] [density]

A copy of one version reads and writes as many bytes as one read of both versions has, so the time of such a copy is the
yardstick. Two figures: until the positions and new elements lie on the device, and until they are on the host. Without
an accelerator there is nothing to measure, and it says so. Not run on one so far; it was tried on the CPU.
bench/engine_cases/accelerator/encode_vs_read.py adds the encoding for the wire.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from periplus.codec.weights.layout import SPAN_BYTES, Span, StateLayout, TensorLayout
from trainer.publishing.device_snapshot import CHUNK_SPANS, ELEMENT_BYTES, replace_changed

PASSES = 20
SPAN_ELEMENTS = SPAN_BYTES // ELEMENT_BYTES


@dataclass(frozen=True)
class Case:
    """Two versions on a device, and what is compared at a time."""

    base: torch.Tensor
    new: torch.Tensor
    chunks: Sequence[tuple[slice, Sequence[Span]]]


def case(num_elements: int, density: float, device: str) -> Case:
    """Random bits, of which a share differs."""
    spans = StateLayout(lines=(TensorLayout(name="w", dtype="BF16", shape=(num_elements,)),)).spans()
    generator = torch.Generator(device=device).manual_seed(0)
    base = torch.randint(-(1 << 15), 1 << 15, (num_elements,), dtype=torch.int16, device=device, generator=generator)
    chosen = torch.rand(num_elements, device=device, generator=generator) < density
    chunks = []
    for first in range(0, len(spans), CHUNK_SPANS):
        stop = min((first + CHUNK_SPANS) * SPAN_ELEMENTS, num_elements)
        chunks.append((slice(first * SPAN_ELEMENTS, stop), spans[first : first + CHUNK_SPANS]))
    return Case(base=base, new=torch.where(chosen, base ^ 1, base), chunks=chunks)


def check(of: Case) -> None:
    """That the changes lead from one version to the other, on the device and on the host."""
    published, at = of.base.clone(), 0
    flat = of.base.cpu().numpy().view(np.uint16).copy()
    for part, spans in of.chunks:
        for change in replace_changed(published[part], of.new[part], spans):
            stop = min(at + SPAN_ELEMENTS, len(flat))
            where = slice(at, stop) if change.positions is None else change.positions.astype(np.int64) + at
            flat[where] = change.values
            at = stop
    assert torch.equal(published, of.new), "the published copy is not the new version"
    assert np.array_equal(flat, of.new.cpu().numpy().view(np.uint16)), "the changes do not lead to the new version"


def gpu_encode_vs_read(num_elements: int, density: float) -> dict[str, Any]:
    """Checked, then measured; medians over PASSES."""
    of = case(num_elements, density, "cuda")
    check(of)
    found = timed(of)
    return found | {"num_elements": num_elements, "density": density, "device": torch.cuda.get_device_name()}


def timed(of: Case) -> dict[str, float]:
    """Return the seconds of a copy, of finding changes, and of finding and taking them to the host, with ratios.

    Each is the median over PASSES.
    """
    scratch = of.base.clone()

    def to_host() -> None:
        for part, spans in of.chunks:
            replace_changed(scratch[part], of.new[part], spans)

    def on_device() -> None:
        for part, _ in of.chunks:
            index = (of.base[part] != of.new[part]).nonzero().squeeze(1)
            of.new[part].take(index)

    median_s = partial(_median_s, of.base.device)
    read_s = median_s(lambda: scratch.copy_(of.base), lambda: None)
    on_device_s = median_s(on_device, lambda: None)
    to_host_s = median_s(to_host, lambda: scratch.copy_(of.base))
    return {
        "gpu_encode_vs_read": on_device_s / read_s,
        "gpu_encode_to_host_vs_read": to_host_s / read_s,
        "read_s": read_s,
        "on_device_s": on_device_s,
        "to_host_s": to_host_s,
        "copy_gbytes_per_s": 2 * ELEMENT_BYTES * of.base.numel() / read_s / 1e9,
    }


def _median_s(device: torch.device, work: Callable[[], object], before: Callable[[], object]) -> float:
    times = []
    for _ in range(PASSES):
        before()
        if device.type == "cpu":  # only to try the program
            began_s = time.perf_counter()
            work()
            times.append(time.perf_counter() - began_s)
            continue
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        times.append(float(start.elapsed_time(stop)) / 1e3)
    return statistics.median(times)


def main(num_elements: str = str(1 << 30), density: str = "0.01") -> None:
    if not torch.cuda.is_available():
        sys.exit("no accelerator at hand: gpu_encode_vs_read is not measured")
    print(json.dumps(gpu_encode_vs_read(int(num_elements), float(density))))


if __name__ == "__main__":
    main(*sys.argv[1:])
