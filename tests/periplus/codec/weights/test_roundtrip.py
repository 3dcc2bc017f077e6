from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.codec.columns import planes
from periplus.codec.weights.decoder import Decoder, decode
from periplus.codec.weights.encoder import Encoder, encode
from periplus.codec.zstd import compress
from periplus.errors import WrongBase
from periplus.values.digest import state_digest
from periplus.values.safetensors_format import ELEMENT_BYTES
from periplus.values.weight_state import Tensor, WeightState, content_bytes
from tests.periplus.codec.weights.cases import noise, pairs, special, step
from tests.support.cases.examples import examples


def through(base: WeightState | None, new: WeightState) -> WeightState:
    return decode(base, encode(base, new), max_content_bytes=content_bytes(new))


@settings(max_examples=examples(100), deadline=None)
@given(pairs())
def test_any_two_states_survive(pair: tuple[WeightState, WeightState]) -> None:
    base, new = pair
    assert through(base, new) == new
    assert through(None, new) == new


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=2048, max_size=2048), st.sampled_from(["BF16", "F16", "F32"]), st.integers(0, 40))
def test_any_bits_survive_as_steps(data: bytes, dtype: str, every: int) -> None:
    width = ELEMENT_BYTES[dtype]
    old = np.frombuffer(data, f"<u{width}")
    new = old.copy()
    new[:: every + 1] = noise(len(old), every)[:: every + 1]
    base, state = {"w": Tensor(dtype, old.shape, old)}, {"w": Tensor(dtype, new.shape, new)}
    assert through(base, state) == state


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_not_a_number_infinities_and_zeros_of_both_signs_are_told_apart(dtype: str) -> None:
    bits = special(dtype)
    count = len(bits) // ELEMENT_BYTES[dtype]
    old = np.repeat(bits.reshape(count, -1), count, axis=0).ravel()
    new = np.tile(bits, count)
    base, state = {"w": Tensor(dtype, (count, count), old)}, {"w": Tensor(dtype, (count, count), new)}
    assert through(base, state) == state


@pytest.mark.parametrize("update", [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-1])
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_every_density_survives(update: float, dtype: str) -> None:
    base, new = step(update, dtype=dtype)
    assert through(base, new) == new


@pytest.mark.parametrize("update", [1e-6, 1e-4])
def test_large_spans_with_gaps_survive(update: float) -> None:
    base, new = step(update, count=300_001, num_tensors=2)
    assert through(base, new) == new


def test_small_spans_and_threads_change_nothing_but_the_cut() -> None:
    base, new = step(1e-5, count=20_000)
    whole, cut = encode(base, new), encode(base, new, span_bytes=1 << 12)
    assert len(cut) == 1 + 30 + 1
    assert encode(base, new, span_bytes=1 << 12, num_threads=3) == cut
    assert decode(base, cut, max_content_bytes=content_bytes(new)) == new
    assert len(whole) == 3


def test_a_read_only_and_unaligned_base_is_read_in_place() -> None:
    base, new = step(1e-5)
    raw = {name: np.frombuffer(b"\0" + tensor.data.tobytes(), np.uint8)[1:] for name, tensor in base.items()}
    odd = {name: Tensor(tensor.dtype, tensor.shape, raw[name]) for name, tensor in base.items()}
    assert encode(odd, new) == encode(base, new)
    assert decode(odd, encode(base, new), max_content_bytes=content_bytes(new)) == new


def test_nothing_changed_costs_a_byte_a_span_and_shares_the_tensors() -> None:
    base, _ = step(1e-5)
    parts = encode(base, base)
    assert [len(part) for part in parts[1:]] == [1, 1]
    back = decode(base, parts, max_content_bytes=content_bytes(base))
    assert all(back[name] is base[name] for name in base)


def test_an_empty_state_is_a_head() -> None:
    assert [len(part) for part in encode({}, {})] == [2]
    assert through({}, {}) == through(None, {}) == {}


def test_a_fold_is_the_sequence() -> None:
    states: list[WeightState] = [step(0.0)[1], *(step(update)[1] for update in (1e-6, 3e-6, 1e-5, 1e-4))]
    walked = states[0]
    for older, newer in pairwise(states):
        walked = decode(walked, encode(older, newer), max_content_bytes=content_bytes(newer))
    folded = decode(states[0], encode(states[0], states[-1]), max_content_bytes=content_bytes(states[-1]))
    assert state_digest(walked) == state_digest(folded) == state_digest(states[-1])


def test_writing_twice_is_harmless_and_in_place() -> None:
    base, new = step(1e-5)
    arrays = {name: tensor.data.copy() for name, tensor in base.items()}
    held = dict(arrays)
    decoder = Decoder(base, max_content_bytes=content_bytes(new), max_parts=9, keep=False)
    for part in encode(base, new):
        if (span := decoder.feed(part)) is not None:
            span.write_into(arrays)
            span.write_into(arrays)
    assert all(np.array_equal(arrays[name], new[name].data) and arrays[name] is held[name] for name in new)


def test_updates_name_absolute_elements_of_tensors() -> None:
    base, new = step(1e-6, count=5000)
    decoder = Decoder(base, max_content_bytes=content_bytes(new), max_parts=9)
    for part in encode(base, new):
        decoder.feed(part)
    staged = decoder.staged()
    assert staged.num_changed == sum(len(update.values) for span in staged.spans for update in span.updates())
    for span in staged.spans:
        for update in span.updates():
            assert update.positions is not None
            words = new[update.name].data.view(update.values.dtype)
            assert np.array_equal(words[update.positions], update.values)


def test_stats_say_what_was_written() -> None:
    base, new = step(1e-6)
    encoder = Encoder(base, new)
    with pytest.raises(ValueError, match="iterate over parts"):
        _ = encoder.stats
    parts = list(encoder.parts())
    changed = sum(np.count_nonzero(base[n].data.view("<u2") != new[n].data.view("<u2")) for n in new if "mlp" in n)
    stats = encoder.stats
    assert (len(parts), stats.num_changed, stats.num_elements) == (encoder.num_parts, changed, 3 * 4000 + 7)
    assert stats.payload_bytes == sum(map(len, parts))
    assert stats.bits_per_change == pytest.approx(8 * stats.payload_bytes / changed)


@pytest.mark.parametrize("other", [None, {}, {"model.norm.weight": Tensor("F32", (7,), np.zeros(28, "u1"))}])
def test_a_base_of_another_layout_is_refused(other: WeightState | None) -> None:
    base, new = step(1e-5)
    with pytest.raises(WrongBase, match="fetch an anchor"):
        decode(other, encode(base, new), max_content_bytes=content_bytes(new))


def full_copy_bytes(state: WeightState) -> int:
    """Return the smaller size of the plain bytes and of the byte planes under zstd-1."""
    groups: dict[int, list[np.ndarray]] = {}
    for _, tensor in sorted(state.items()):
        groups.setdefault(ELEMENT_BYTES[tensor.dtype], []).append(tensor.data)
    joined = {width: np.concatenate(group) for width, group in groups.items()}
    plain = compress(b"".join(data.tobytes() for data in joined.values()), 1)
    planed = compress(b"".join(planes(data, width) for width, data in joined.items()), 1)
    return min(len(plain), len(planed))


@pytest.mark.parametrize(
    ("update", "count"), [*((u, 4000) for u in (0.0, 1e-7, 1e-5, 1e-3, 1e-1, 10.0)), (1e-3, 300_000), (10.0, 200_000)]
)
def test_no_delta_exceeds_a_full_copy(update: float, count: int) -> None:
    base, new = step(update, count=count)
    assert sum(map(len, encode(base, new))) <= 1.01 * full_copy_bytes(new)


@pytest.mark.parametrize("value", [0, 0x3F80])
def test_a_constant_state_is_as_small_as_a_full_copy(value: int) -> None:
    base, _ = step(0.0, count=150_000)
    new = {name: Tensor(t.dtype, t.shape, np.full(t.data.size // 2, value, "<u2")) for name, t in base.items()}
    assert sum(map(len, encode(base, new))) <= 1.01 * full_copy_bytes(new) + 32


def test_an_anchor_is_as_small_as_a_full_copy() -> None:
    _, new = step(0.0, count=100_000)
    layout_bytes = len(encode(None, new)[0])
    assert sum(map(len, encode(None, new))) <= 1.01 * full_copy_bytes(new) + layout_bytes
