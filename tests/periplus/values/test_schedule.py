import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.values.schedule import Decay, learning_rate


def rates(decay: Decay, floor: float = 0.0) -> list[float]:
    return [learning_rate(s, num_steps=10, peak=1.0, ramp_steps=2, decay=decay, floor=floor) for s in range(10)]


def test_the_ramp_rises_linearly_to_the_peak() -> None:
    assert rates(Decay.CONSTANT) == pytest.approx([1 / 3, 2 / 3] + [1.0] * 8)


def test_linear_decay_ends_one_step_above_its_floor() -> None:
    assert rates(Decay.LINEAR)[2:] == pytest.approx([1 - n / 8 for n in range(8)])
    assert rates(Decay.LINEAR, floor=0.5)[-1] == pytest.approx(0.5 + 0.5 / 8)


def test_cosine_decay_is_half_way_down_in_the_middle() -> None:
    assert rates(Decay.COSINE)[6] == pytest.approx(0.5)


@given(st.integers(0, 500), st.integers(1, 300), st.integers(0, 50), st.sampled_from(Decay), st.floats(0, 1))
def test_the_rate_stays_within_zero_and_the_peak_even_past_the_end(
    step: int, num_steps: int, ramp_steps: int, decay: Decay, floor: float
) -> None:
    rate = learning_rate(step, num_steps=num_steps, peak=3e-4, ramp_steps=ramp_steps, decay=decay, floor=floor)
    assert 0 <= rate <= 3e-4 * (1 + 1e-9)
    assert learning_rate(step, num_steps=num_steps, peak=0.0, ramp_steps=ramp_steps, decay=decay, floor=floor) == 0
