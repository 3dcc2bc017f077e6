import math

import numpy as np
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from periplus.values.digest import BLOCK_BYTES, TensorHasher, payload_digest, root, state_digest, tensor_digest
from periplus.values.weight_state import Tensor, WeightState
from tests.support.cases.strategies import states

RAMP = np.arange(BLOCK_BYTES * 2 + 3, dtype=np.uint64).astype(np.uint8)


def _recursive_root(hashes: list[bytes]) -> bytes:
    """Compute the root by recursion, split at the largest power of two below the count, as RFC 6962 does."""
    if len(hashes) == 1:
        return hashes[0]
    cut = 1 << (len(hashes) - 1).bit_length() - 1
    both = _recursive_root(hashes[:cut]) + _recursive_root(hashes[cut:])
    return blake3(both, derive_key_context="periplus.digest/1 node").digest()


@given(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=20))
def test_the_root_equals_that_of_a_recursive_definition(hashes: list[bytes]) -> None:
    assert root(hashes) == _recursive_root(hashes)


def test_a_tensor_of_one_block_has_the_plain_blake3_of_its_bytes() -> None:
    assert tensor_digest(Tensor("U8", (5,), RAMP[:5])) == blake3(bytes(range(5))).digest()
    assert tensor_digest(Tensor("U8", (0, 7), RAMP[:0])) == blake3(b"").digest()


def test_digests_are_frozen() -> None:
    tensor = Tensor("U8", (RAMP.size,), RAMP)
    scalar = Tensor("F32", (), np.array([1.5], "<f4"))
    assert tensor_digest(tensor).hex() == GOLDEN_TENSOR
    assert state_digest({"ramp": tensor, "π": scalar}).hex() == GOLDEN_STATE
    assert state_digest({}).hex() == GOLDEN_EMPTY
    assert payload_digest(b"periplus").hex() == GOLDEN_PAYLOAD


def test_order_of_names_does_not_matter() -> None:
    a, b = Tensor("U8", (1,), RAMP[:1]), Tensor("U8", (1,), RAMP[1:2])
    assert state_digest({"a": a, "b": b}) == state_digest({"b": b, "a": a})


@given(states(), st.data())
def test_every_change_changes_the_digest(state: WeightState, data: st.DataObject) -> None:
    before = state_digest(state)
    for name, tensor in state.items():
        rest = {other: t for other, t in state.items() if other != name}
        assert state_digest(rest) != before
        assert state_digest(rest | {name + "x": tensor}) != before
        assert state_digest(rest | {name: Tensor(tensor.dtype, (1, *tensor.shape), tensor.data)}) != before
        if tensor.data.size:
            at = data.draw(st.integers(0, tensor.data.size - 1))
            flipped = tensor.data.copy()
            flipped[at] ^= 1
            assert state_digest(rest | {name: Tensor(tensor.dtype, tensor.shape, flipped)}) != before
        assert math.prod(tensor.shape) == tensor.num_elements


GOLDEN_TENSOR = "7703494cba0ea11553d92b6ea7cefa903e49c6d7e5fe9216b81625eff726f3dc"
GOLDEN_STATE = "226691a4bb63136272a35eb5f69bf6cddcec632f1cd07ac73e9ee3afaef23f03"
GOLDEN_EMPTY = "714f1ee4b9b6a9b60078baa66a1e9568ae345756157308d2871f10d92d6d702f"
GOLDEN_PAYLOAD = "f3757badc238e86a8f9cdae9e74d52cd65b9f03a529a64abf1a7ab765d0bb092"


@given(st.lists(st.integers(0, RAMP.size), max_size=6))
def test_bytes_that_come_in_pieces_have_the_digest_of_the_whole(cuts: list[int]) -> None:
    hasher = TensorHasher()
    for piece in np.split(RAMP, sorted(cuts)):
        hasher.update(piece)
    assert hasher.digest().hex() == GOLDEN_TENSOR


def test_whole_blocks_may_come_as_their_hashes() -> None:
    hasher = TensorHasher()
    hasher.update(RAMP[:BLOCK_BYTES])
    hasher.add_leaves([blake3(RAMP[BLOCK_BYTES : 2 * BLOCK_BYTES].data).digest()])
    hasher.update(RAMP[2 * BLOCK_BYTES :])
    assert hasher.digest().hex() == GOLDEN_TENSOR
