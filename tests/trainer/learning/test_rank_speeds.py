"""Ranks learn from each other how fast they are, and divide rows by it only where it matters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainer.learning.rank_speeds import NOTABLE, RankSpeeds
from trainer.learning.ranks import Ranks


class Others(Ranks):
    """Ranks whose sums have the seconds of ranks that are not there."""

    seconds: Callable[[], list[float]]

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor.copy_(torch.tensor(self.seconds(), dtype=tensor.dtype))
        return tensor


def ranks(seconds: Callable[[], list[float]]) -> Any:
    made = Others(rank=0, size=len(seconds()))
    object.__setattr__(made, "seconds", seconds)
    return made


def test_one_rank_measures_nothing() -> None:
    alone = Ranks()
    assert RankSpeeds(torch.device("cpu")).measured(alone) is alone


def test_ranks_of_one_speed_divide_evenly() -> None:
    found = RankSpeeds(torch.device("cpu"))
    assert found.measured(ranks(lambda: [0.010, 0.010 * NOTABLE * 0.99])).shares == ()


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_a_slow_rank_gets_its_share(factor: float) -> None:
    shares = RankSpeeds(torch.device("cpu")).measured(ranks(lambda: [0.01, 0.01 * factor])).shares
    assert shares == pytest.approx((factor / (factor + 1), 1 / (factor + 1)))


def test_a_change_is_followed_within_twenty_steps_and_one_odd_probe_is_not() -> None:
    now = [0.01, 0.01]
    speeds, here = RankSpeeds(torch.device("cpu")), ranks(lambda: now)
    for _ in range(3):
        speeds.measured(here)
    now[:] = [0.01, 0.015]
    assert speeds.measured(here).shares == ()
    now[:] = [0.04, 0.01]
    for _ in range(20):
        shares = speeds.measured(here).shares
    assert shares == pytest.approx((0.2, 0.8), abs=0.01)


def test_a_probe_is_of_this_rank_alone_and_takes_a_small_part_of_a_step() -> None:
    heard: list[list[float]] = []

    class Alone(Ranks):
        def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
            heard.append(tensor.tolist())
            return tensor.clamp_(min=1e-9)

    speeds = RankSpeeds(torch.device("cpu"))
    speeds.measured(Alone(rank=1, size=3))
    assert heard[0][0] == heard[0][2] == 0.0
    assert 0.0 < heard[0][1] < 1.0
