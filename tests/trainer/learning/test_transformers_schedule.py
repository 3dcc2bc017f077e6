import pytest

from periplus.errors import ConfigError
from trainer.learning.transformers_schedule import scheduled_rate


def test_a_schedule_of_transformers_has_its_options_and_no_step_of_rate_zero_at_the_start() -> None:
    def rate(step: int, **options: float) -> float:
        return scheduled_rate(step, name="cosine_with_restarts", num_steps=12, peak=2.0, ramp_steps=2, options=options)

    assert [rate(step) for step in range(3)] == pytest.approx([1.0, 2.0, 2.0])
    # Two cycles over the ten steps after the ramp: the second begins at the peak again.
    assert rate(7, num_cycles=2) == pytest.approx(2.0)
    assert rate(7) < 1.1


def test_an_option_that_the_schedule_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"polynomial of transformers refuses optimizer\.schedule_options .*'cycles'"):
        scheduled_rate(0, name="polynomial", num_steps=5, peak=1.0, ramp_steps=0, options={"cycles": 3})
