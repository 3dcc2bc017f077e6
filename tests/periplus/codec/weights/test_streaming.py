import subprocess
import sys
import tracemalloc

import numpy as np

from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.encoder import Encoder
from periplus.values.weight_state import Tensor, content_bytes
from tests.periplus.codec.weights.cases import step

SPAN_BYTES = 1 << 16


def peak_bytes(num_tensors: int, *, num_threads: int = 1) -> int:
    """Return the most memory that encoding, decoding and writing a state span by span takes at once."""
    base, new = step(1e-5, count=50_000, num_tensors=num_tensors)
    arrays = {name: tensor.data.copy() for name, tensor in base.items()}
    tracemalloc.start()
    encoder = Encoder(base, new, span_bytes=SPAN_BYTES, num_threads=num_threads)
    decoder = Decoder(base, max_content_bytes=content_bytes(new), max_parts=encoder.num_parts, keep=False)
    for part in encoder.parts():
        if (span := decoder.feed(part)) is not None:
            span.write_into(arrays)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(np.array_equal(arrays[name], new[name].data) for name in new)
    return peak


def test_memory_beyond_the_states_is_a_few_spans_however_large_they_are() -> None:
    peak_bytes(2)
    one = peak_bytes(9)
    assert one < 1.5 * peak_bytes(3)
    # Two spans are encoded while a third is decoded; which of their moments meet is up to the scheduler.
    assert peak_bytes(9, num_threads=2) < 3 * one


def test_a_caller_who_stops_early_leaves_no_thread_behind() -> None:
    base, new = step(1e-5, count=100_000)
    parts = Encoder(base, new, span_bytes=1 << 12, num_threads=2).parts()
    assert len(next(parts)) == 3
    assert next(parts)
    parts.close()


def test_known_positions_give_the_same_bytes() -> None:
    base, new = step(1e-5, count=50_000)
    encoder = Encoder(base, new)
    layout_spans = Decoder(base, max_content_bytes=content_bytes(new))
    plain = list(encoder.parts())
    for part in plain:
        layout_spans.feed(part)
    known = [span.positions for span in layout_spans.staged().spans]
    assert list(Encoder(base, new, changes=known).parts()) == plain


def test_the_layout_loads_no_compiler() -> None:
    source = "import sys, periplus.codec.weights.layout; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


def test_an_update_of_a_whole_range_has_no_positions() -> None:
    new = {"w": Tensor("I64", (3,), np.arange(3, dtype="<i8"))}
    decoder = Decoder(None, max_content_bytes=24)
    spans = [decoder.feed(part) for part in Encoder(None, new).parts()]
    assert spans[1] is not None
    (update,) = spans[1].updates()
    assert (update.name, update.positions, update.start, update.values.tolist()) == ("w", None, 0, [0, 1, 2])
