import numpy as np
import pytest

from periplus.codec.weights.encoder import encode
from periplus.codec.weights.floors import adaptive_floor_bits, floors, steps_between
from periplus.values.weight_state import Tensor
from tests.periplus.codec.weights.cases import step


def test_a_step_is_the_distance_on_the_ordered_line() -> None:
    old = np.array([0x0000, 0x8000, 0x3F80, 0xBF80, 0x0000], np.uint16)
    new = np.array([0x8000, 0x0000, 0x3F81, 0xBF81, 0x0001], np.uint16)
    assert steps_between(old, new).tolist() == [-1, 1, 1, -1, 1]


def test_one_coin_costs_its_entropy() -> None:
    old = np.full(1000, 0x3F80, np.uint16)
    new = old.copy()
    new[:250] += 1
    base, state = {"w": Tensor("BF16", (1000,), old)}, {"w": Tensor("BF16", (1000,), new)}
    found = floors(base, state)
    assert found.iid_bits == pytest.approx(811.278, abs=1e-3)
    assert found.conditional_bits == found.step_entropy_bits == pytest.approx(found.iid_bits)
    assert found.conditional_with_tables_bits == pytest.approx(811.278 + 4.983, abs=1e-3)
    assert adaptive_floor_bits(base, state) == pytest.approx(811.278 + 5.309, abs=1e-3)
    assert (found.num_changed, found.num_elements) == (250, 1000)


@pytest.mark.parametrize("update", [1e-6, 1e-5, 1e-4, 1e-3])
def test_floors_are_ordered_and_the_codec_stays_near_them(update: float) -> None:
    base, new = step(update, count=20_000)
    found, adaptive = floors(base, new), adaptive_floor_bits(base, new)
    assert found.conditional_bits <= found.conditional_with_tables_bits <= adaptive * 1.05
    assert adaptive < found.iid_bits
    assert 8 * sum(map(len, encode(base, new))) <= 1.08 * adaptive


def test_states_without_common_floats_have_floors_of_nothing() -> None:
    found = floors({"w": Tensor("I32", (1,), np.zeros(1, "<i4"))}, {"v": Tensor("BF16", (1,), np.zeros(1, "<u2"))})
    assert (found.iid_bits, found.conditional_with_tables_bits, found.num_elements) == (0.0, 0.0, 0)
