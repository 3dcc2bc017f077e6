"""Made-up deltas are what their module says."""

import numpy as np
import pytest

from bench.weight_deltas import synthetic
from bench.weight_deltas.states import density


@pytest.mark.parametrize(("rate", "expected"), [(1.5e-7, 0.002), (1e-6, 0.01), (7e-4, 0.79)])
def test_densities_span_what_is_measured(rate: float, expected: float) -> None:
    assert density(*synthetic.one_step(1 << 20, rate)) == pytest.approx(expected, rel=0.15)


def test_large_states_come_in_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "TENSOR_ELEMENTS", 1 << 14)
    base, new = synthetic.one_step((1 << 15) + 2048, 1e-6)
    assert [tensor.num_elements for tensor in base.values()] == [1 << 14, 1 << 14, 2048]
    assert base.keys() == new.keys()


def test_steps_of_the_simulation_follow_each_other() -> None:
    found = synthetic.simulated(1e-6, (1, 2, 3), num_elements=1 << 15)
    assert found[2][0] == found[1][1]
    assert found[3][0] == found[2][1]
    assert density(*found[1]) < density(*found[3])


def test_a_simulation_can_be_made_again() -> None:
    first, again = (synthetic.simulated(1e-6, (2,), num_elements=1 << 14)[2] for _ in range(2))
    assert first == again


def test_the_stress_changes_as_many_as_asked_for() -> None:
    base, new = synthetic.stress(0.03, num_elements=1 << 20)
    assert density(base, new) == pytest.approx(0.03, rel=0.05)
    changed = np.flatnonzero(base["layers.00.weight"].data != new["layers.00.weight"].data)
    assert changed[-1] - changed[0] > 1.9 * (1 << 20)
