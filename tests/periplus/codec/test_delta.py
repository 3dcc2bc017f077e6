import json
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.delta import PlanesZstd, StateCodec, XorZstd, change, choose
from periplus.codec.frame import CodecId
from periplus.codec.zstd import compress
from periplus.errors import CorruptFrame, WireError, WrongBase
from periplus.state import State, Tensor, content_bytes
from tests.support.strategies import states, steps

OLD = {
    "a": Tensor("BF16", (3,), np.array([0x3F80, 0x7FC1, 0x8000], "<u2")),
    "b": Tensor("F32", (), np.zeros(4, "u1")),
}
NEW = OLD | {"a": Tensor("BF16", (3,), np.array([0x3F81, 0x7FC2, 0x0000], "<u2"))}
CODECS: list[StateCodec] = [PlanesZstd(), XorZstd()]


@given(steps())
def test_any_state_survives_both_codecs_bit_for_bit(step: tuple[State, State]) -> None:
    base, new = step
    for codec in CODECS:
        payload = codec.encode(base, new)
        assert codec.decode(base, payload, max_content_bytes=content_bytes(new)) == new


@given(states())
def test_a_full_state_needs_no_base(state: State) -> None:
    payload = PlanesZstd().encode(None, state)
    assert PlanesZstd().decode(None, payload, max_content_bytes=content_bytes(state)) == state


def test_not_a_number_and_minus_zero_are_told_apart_by_their_bits() -> None:
    back = XorZstd().decode(OLD, XorZstd().encode(OLD, NEW), max_content_bytes=10)
    assert back["a"].data.view("<u2").tolist() == [0x3F81, 0x7FC2, 0x0000]


def test_what_did_not_change_costs_nothing_and_is_shared() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    big = {"a": OLD["a"], "big": Tensor("U8", (1 << 20,), noise)}
    payload = XorZstd().encode(big, big | {"a": NEW["a"]})
    assert len(payload) < 200
    assert XorZstd().decode(big, payload, max_content_bytes=content_bytes(big))["big"] is big["big"]


@pytest.mark.parametrize(
    "base",
    [
        None,
        {"a": OLD["a"]},
        OLD | {"c": OLD["a"]},
        OLD | {"a": Tensor("BF16", (3, 1), OLD["a"].data)},
        OLD | {"a": Tensor("F16", (3,), OLD["a"].data)},
    ],
    ids=["none", "lacks a tensor", "has one more", "other shape", "other dtype"],
)
def test_a_base_of_another_layout_is_wrong_on_both_sides(base: State | None) -> None:
    with pytest.raises(WrongBase, match="fetch an anchor"):
        XorZstd().encode(base, NEW)
    with pytest.raises(WrongBase, match="fetch an anchor"):
        XorZstd().decode(base, XorZstd().encode(OLD, NEW), max_content_bytes=100)


@pytest.mark.parametrize("codec", CODECS)
def test_content_beyond_the_bound_is_refused(codec: StateCodec) -> None:
    with pytest.raises(CorruptFrame, match="10 bytes of tensors; at most 9"):
        codec.decode(OLD, codec.encode(OLD, NEW), max_content_bytes=9)


@pytest.mark.parametrize("codec", CODECS)
def test_every_changed_byte_is_refused_or_harmless(codec: StateCodec) -> None:
    payload = codec.encode(OLD, NEW)
    for i in range(len(payload)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            damaged = payload[:i] + bytes([payload[i] ^ flip]) + payload[i + 1 :]
            with suppress(WireError):
                assert codec.decode(OLD, damaged, max_content_bytes=1000) == NEW
    for cut in range(len(payload)):
        with pytest.raises(CorruptFrame):
            codec.decode(OLD, payload[:cut], max_content_bytes=1000)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["a", "BF16", "F32", "\ud800"]), st.lists, max_leaves=8
)


@given(
    st.lists(st.tuples(st.just("a"), st.just("BF16"), json_values, json_values) | json_values, max_size=3),
    st.binary(max_size=20),
)
def test_a_layout_that_lies_is_refused_or_read_as_some_state(layout: object, data: bytes) -> None:
    frame = compress(json.dumps(layout).encode(), 1)
    payload = struct.pack("<I", len(frame)) + frame + compress(data, 1)
    for codec in CODECS:
        with suppress(WireError):
            assert content_bytes(codec.decode(OLD, payload, max_content_bytes=100)) <= 100


def test_payloads_of_an_earlier_build_are_read() -> None:
    for codec, payload in zip(CODECS, (GOLDEN_PLANES, GOLDEN_XOR), strict=True):
        assert codec.decode(OLD, bytes.fromhex(payload), max_content_bytes=10) == NEW


def test_the_smaller_payload_is_chosen() -> None:
    rng = np.random.default_rng(0)
    noise = Tensor("U8", (4096,), rng.integers(0, 256, 4096, dtype=np.uint8))
    zeros = Tensor("U8", (4096,), np.zeros(4096, np.uint8))
    nudged = Tensor("U8", (4096,), noise.data ^ (rng.random(4096) < 0.01).astype(np.uint8))
    assert choose({"w": noise}, {"w": nudged})[0] is CodecId.STATE_XOR_ZSTD
    assert choose({"w": noise}, {"w": zeros})[0] is CodecId.STATE_PLANES_ZSTD
    assert choose(None, {"w": zeros})[0] is CodecId.STATE_PLANES_ZSTD
    assert choose({}, {"w": zeros})[0] is CodecId.STATE_PLANES_ZSTD


@given(steps())
def test_changed_elements_are_those_that_differ_in_any_bit(step: tuple[State, State]) -> None:
    base, new = step
    expected = 0
    for name, tensor in new.items():
        width = max(tensor.data.size // max(tensor.num_elements, 1), 1)
        old_bytes, new_bytes = base[name].data.tobytes(), tensor.data.tobytes()
        expected += sum(old_bytes[i : i + width] != new_bytes[i : i + width] for i in range(0, len(new_bytes), width))
    found = change(base, new)
    assert found.num_changed == expected
    assert 0 <= found.density <= 1


GOLDEN_PLANES = (
    "3800000028b52ffd242b5901005b5b2261222c2242463136222c5b335d2c747275655d2c5b2262222c22463332222c5b5d2c"
    "747275655d5d761e39e028b52ffd240a51000081c2003f7f000000000013cc8eba"
)
GOLDEN_XOR = (
    "3900000028b52ffd242c6101005b5b2261222c2242463136222c5b335d2c747275655d2c5b2262222c22463332222c5b5d2c"
    "66616c73655d5dae53b14b28b52ffd240631000001030000008064c62424"
)
