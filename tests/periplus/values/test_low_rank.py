"""Merging adapters: against an oracle of scalar arithmetic, and against torch."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from periplus.values.low_rank import (
    adapted_weight,
    adapted_weights,
    adapters_of,
    changed_words,
    is_adapter,
    merged,
    merged_state,
    merged_words,
    rounded_bits,
)
from periplus.values.weight_state import Tensor

Q, NORM = "model.layers.0.q_proj.weight", "model.norm.weight"
A, B = "model.layers.0.q_proj.lora_A.weight", "model.layers.0.q_proj.lora_B.weight"


def matrix(seed: int, *shape: int, size: float = 1.0) -> Tensor:
    values = (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)
    return Tensor("BF16", shape, rounded_bits(values.view(np.uint32)).reshape(-1))


def state(rows: int = 7, columns: int = 5, rank: int = 3) -> dict[str, Tensor]:
    return {
        NORM: matrix(0, columns),
        Q: matrix(1, rows, columns),
        A: matrix(2, rank, columns),
        B: matrix(3, rows, rank, size=0.1),
    }


def value(word: int) -> Fraction:
    return Fraction(float(np.array([word << 16], np.uint32).view(np.float32)[0]))


def to_float32(exact: Fraction) -> Fraction:
    # Through float64, which holds each product of two float32 numbers exactly, and each sum here.
    return Fraction(float(np.float32(exact.numerator / exact.denominator)))


def test_each_product_and_each_sum_is_rounded_once_as_the_formula_says() -> None:
    given, scale = state(), Fraction(1, 2)
    words = {name: tensor.data.view(np.uint16).reshape(tensor.shape) for name, tensor in given.items()}
    found = merged(given, Q, 0.5).data.view(np.uint16).reshape(7, 5)
    for row in range(7):
        for column in range(5):
            total = value(int(words[Q][row, column]))
            for k in range(3):
                b = to_float32(scale * value(int(words[B][row, k])))
                total = to_float32(total + to_float32(b * value(int(words[A][k, column]))))
            expected = torch.tensor(float(total)).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
            assert found[row, column] == expected


def test_torch_on_tensors_gets_the_same_bits_and_a_matrix_product_is_close() -> None:
    given, scale = state(300, 129, 16), 2.0
    base, a, b = (
        torch.from_numpy(given[name].data.copy()).view(torch.bfloat16).view(given[name].shape).float()
        for name in (Q, A, B)
    )
    total, scaled = base.clone(), b * scale
    for k in range(16):
        total = total + scaled[:, k : k + 1] * a[k : k + 1]
    expected = total.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    found = merged(given, Q, scale).data.view(np.uint16).reshape(300, 129)
    assert np.array_equal(found, expected)
    assert torch.allclose(total, base + scale * b @ a, atol=1e-5)
    assert not np.array_equal(found, given[Q].data.view(np.uint16).reshape(300, 129))


def test_large_weights_are_merged_in_blocks_of_rows() -> None:
    base, a, b = (matrix(seed, *shape) for seed, shape in ((1, (700, 1000)), (2, (2, 1000)), (3, (700, 2))))
    words = [tensor.data.view(np.uint16).reshape(tensor.shape) for tensor in (base, a, b)]
    whole = merged_words(words[0], words[1], words[2], 1.0)
    assert np.array_equal(whole[611:612], merged_words(words[0][611:612], words[1], words[2][611:612], 1.0))


def test_adapters_of_zero_change_nothing() -> None:
    given = state()
    given[B] = Tensor("BF16", (7, 3), np.zeros(21, np.uint16))
    assert merged_state(given, 4.0) == {NORM: given[NORM], Q: given[Q]}


def test_names() -> None:
    assert (is_adapter(A), is_adapter(B), is_adapter(Q)) == (True, True, False)
    assert (adapted_weight(A), adapted_weight(B), adapters_of(Q)) == (Q, Q, (A, B))
    assert adapted_weights(state()) == (Q,)
    assert merged_state(state(), 1.0).keys() == {NORM, Q}
    assert merged_state(state(), 1.0)[NORM] is not None


@pytest.mark.parametrize(
    "change",
    [
        {A: matrix(2, 3, 6)},
        {B: matrix(2, 7, 2)},
        {A: Tensor("F32", (3, 5), np.zeros(15, "<f4"))},
        {Q: matrix(0, 35)},
    ],
)
def test_adapters_that_do_not_fit_are_refused(change: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match="q_proj"):
        merged_state({**state(), **change}, 1.0)


def test_an_adapter_without_its_partner_or_its_weight_is_refused() -> None:
    for name in (A, B, Q):
        with pytest.raises(KeyError):
            merged({key: tensor for key, tensor in state().items() if key != name}, Q, 1.0)


def test_changes_are_compared_bit_for_bit() -> None:
    old, new = np.array([0, 0x8000, 5, 6], np.uint16), np.array([0x8000, 0x8000, 5, 7], np.uint16)
    positions, words = changed_words(Tensor("BF16", (4,), old), Tensor("BF16", (2, 2), new))
    assert (positions.tolist(), words.tolist()) == ([0, 3], [0x8000, 7])
