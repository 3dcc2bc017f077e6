"""How fast a delta is made and applied, and in how much memory: by the process as it is bound, on one thread."""

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.weight_deltas.peers import peers
from bench.weight_deltas.sizes import Row
from bench.weight_deltas.states import bits
from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.encoder import Encoder, encode
from periplus.codec.weights.layout import SPAN_BYTES
from periplus.values.weight_state import WeightState, content_bytes

Arrays = dict[str, npt.NDArray[np.uint8]]


def speeds(base: WeightState, new: WeightState, *, passes: int) -> Row:
    """GB of the full state a second of wall time and of CPU time."""
    gbytes, parts, arrays = content_bytes(new) / 1e9, encode(base, new), writable(base)
    encode_s = _median_s(partial(_encode_and_drop, base, new), passes)
    decode_s = _median_s(partial(_decode_and_apply, base, parts, arrays), passes)
    assert all(np.array_equal(arrays[name], tensor.data) for name, tensor in new.items())
    return {
        "encode_gbytes_per_s": gbytes / encode_s[0],
        "encode_gbytes_per_cpu_s": gbytes / encode_s[1],
        "decode_apply_gbytes_per_s": gbytes / decode_s[0],
        "decode_apply_gbytes_per_cpu_s": gbytes / decode_s[1],
    }


def peer_speeds(base: WeightState, new: WeightState, *, passes: int) -> Row:
    """The same of the other layouts, in numpy as they are in their systems; their decoders copy what they change."""
    gbytes, found = content_bytes(new) / 1e9, {}
    for peer in peers():
        encode_s = _median_s(partial(peer.encode, base, new), passes)[0]
        decode_s = _median_s(partial(peer.decode, base, peer.encode(base, new)), passes)[0]
        found[peer.name] = {"encode_gbytes_per_s": gbytes / encode_s, "decode_gbytes_per_s": gbytes / decode_s}
    positions_s = _median_s(partial(_find_positions, base, new), passes)[0]
    return {**found, "comparing_and_positions_alone": {"encode_gbytes_per_s": gbytes / positions_s}}


def memory(base: WeightState, new: WeightState) -> Row:
    """How far the resident set rises above both states, in spans of the codec; the payload is kept while decoding."""
    parts, arrays = encode(base, new), writable(base)
    return {
        "encode_spans": _risen_bytes(partial(_encode_and_drop, base, new)) / SPAN_BYTES,
        "decode_apply_spans": _risen_bytes(partial(_decode_and_apply, base, parts, arrays)) / SPAN_BYTES,
        "state_spans": content_bytes(new) / SPAN_BYTES,
    }


def writable(state: WeightState) -> Arrays:
    """What a reader's weights are: arrays that a delta is applied to in place."""
    return {name: tensor.data.copy() for name, tensor in state.items()}


def _encode_and_drop(base: WeightState, new: WeightState) -> None:
    for _ in Encoder(base, new, num_threads=1).parts():
        pass


def _decode_and_apply(base: WeightState, parts: Sequence[bytes], arrays: Arrays) -> None:
    decoder = Decoder(base, max_content_bytes=content_bytes(base), max_parts=len(parts))
    for part in parts:
        decoder.feed(part)
    decoder.staged().write_into(arrays)


def _find_positions(base: WeightState, new: WeightState) -> None:
    for name, tensor in new.items():
        np.flatnonzero(bits(base[name]) != bits(tensor))


def _median_s(work: Callable[[], Any], passes: int) -> tuple[float, float]:
    """Wall and CPU seconds, after a pass that is not counted."""
    work()
    walls_s, cpus_s = [], []
    for _ in range(passes):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        work()
        walls_s.append(time.perf_counter() - wall_s)
        cpus_s.append(time.process_time() - cpu_s)
    return statistics.median(walls_s), statistics.median(cpus_s)


def _risen_bytes(work: Callable[[], Any]) -> int:
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not hide what is taken now
    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak is counted anew
    before = _resident_bytes("VmRSS")
    work()
    return max(0, _resident_bytes("VmHWM") - before)


def _resident_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(one.split()[1]) << 10 for one in lines if one.startswith(name))
