import numpy as np
import pytest

from periplus.codec.weights.entropy import adaptive
from periplus.codec.weights.entropy.coder import SymbolReader, SymbolWriter
from periplus.errors import CorruptFrame
from tests.periplus.codec.weights.cases import noise

NUM_EXPONENTS = 256


def written(outward: np.ndarray, per_exponent: np.ndarray, seen: np.ndarray) -> bytes:
    writer = SymbolWriter()
    adaptive.write(writer, outward, per_exponent, seen)
    return writer.finish()


def drawn(sizes: dict[int, int], largest: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return steps of magnitudes up to `largest`, and the number of them by exponent."""
    per_exponent = np.zeros(NUM_EXPONENTS, np.int64)
    for exponent, count in sizes.items():
        per_exponent[exponent] = count
    words = noise(int(per_exponent.sum()), seed)
    magnitudes = 1 + (words >> np.uint64(8)) % np.uint64(largest)
    return (magnitudes.astype(np.int64) * np.where(words & np.uint64(1), 1, -1)).astype(np.int32), per_exponent


@pytest.mark.parametrize("sizes", [{0: 1}, {255: 1}, {255: 3, 0: 3}, {120: 700, 119: 650, 117: 400, 3: 2}])
@pytest.mark.parametrize("largest", [1, 2, 9, 1 << 15, (1 << 31) - 1])
@pytest.mark.parametrize("spare", [0, 1, 1 << 18])
def test_steps_of_any_size_come_back(sizes: dict[int, int], largest: int, spare: int) -> None:
    outward, per_exponent = drawn(sizes, largest, largest + spare)
    data = written(outward, per_exponent, per_exponent + spare)
    found = adaptive.read(SymbolReader(data), per_exponent, per_exponent + spare)
    assert np.array_equal(found, outward)


def test_no_steps_are_a_symbol() -> None:
    none, per_exponent = np.zeros(0, np.int32), np.zeros(NUM_EXPONENTS, np.int64)
    data = written(none, per_exponent, per_exponent)
    assert len(adaptive.read(SymbolReader(data), per_exponent, per_exponent)) == 0


@pytest.mark.parametrize("direction", [1, -1])
def test_steps_in_one_direction_cost_a_tenth_of_a_bit(direction: int) -> None:
    outward, per_exponent = drawn({120: 4000}, 1, 5)
    one_way = (np.abs(outward) * direction).astype(np.int32)
    seen = per_exponent * 50
    data = written(one_way, per_exponent, seen)
    assert np.array_equal(adaptive.read(SymbolReader(data), per_exponent, seen), one_way)
    assert len(data) * 8 < 0.15 * 4000
    assert 4000 < len(written(outward, per_exponent, seen)) * 8 < 4200


def test_the_next_exponent_is_foretold_to_move_twice_as_far() -> None:
    sizes = {120: 60, 119: 60, 118: 60, 117: 60}
    far, per_exponent = drawn(sizes, 1, 7)
    doubling = far.copy()
    for number, start in enumerate(range(180, -1, -60)):
        doubling[start : start + 60] *= 1 << number
    assert len(written(doubling, per_exponent, per_exponent)) < len(written(doubling[::-1], per_exponent, per_exponent))


def test_other_numbers_of_steps_are_refused() -> None:
    outward, per_exponent = drawn({120: 300, 119: 200}, 6, 9)
    data = written(outward, per_exponent, per_exponent * 2)
    for change in (-1, 1):
        other = per_exponent.copy()
        other[119] += change
        with pytest.raises(CorruptFrame):
            adaptive.read(SymbolReader(data), other, per_exponent * 2)
