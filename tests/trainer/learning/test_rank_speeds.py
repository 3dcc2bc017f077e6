"""Ranks learn from each other how fast they are, and divide rows by it only where it matters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainer.learning.rank_speeds import NOTABLE, RankSpeeds, shares_of
from trainer.learning.ranks import Ranks


class Others(Ranks):
    """Ranks whose sums have the seconds of ranks that are not there."""

    seconds: Callable[[], list[float]]

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor[0] = torch.tensor(self.seconds(), dtype=tensor.dtype)
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
    heard: list[list[list[float]]] = []

    class Alone(Ranks):
        def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
            heard.append(tensor.tolist())
            return tensor.clamp_(min=1e-9)

    speeds = RankSpeeds(torch.device("cpu"))
    speeds.measured(Alone(rank=1, size=3))
    speeds.passed()
    speeds.measured(Alone(rank=1, size=3))
    assert heard[1][1][1] > 0.0
    (seconds, work) = heard[0]
    assert seconds[0] == seconds[2] == 0.0
    assert 0.0 < seconds[1] < 1.0
    assert work == [0.0, 0.0, 0.0], "there was no step yet"


@pytest.mark.parametrize(
    ("slower", "constant", "expected"),
    [(1.0, 0.5, (0.5, 0.5)), (2.0, 0.0, (2 / 3, 1 / 3)), (2.0, 0.5, (5 / 6, 1 / 6)), (4.0, 0.5, (1.0, 0.0))],
)
def test_constant_work_makes_the_share_of_a_slow_rank_smaller(
    slower: float, constant: float, expected: tuple[float, float]
) -> None:
    shares = shares_of([1.0, slower], constant)
    assert shares == pytest.approx(expected)
    ends = [seconds * (constant + share) for seconds, share in zip([1.0, slower], shares, strict=True)]
    assert ends[0] == pytest.approx(ends[1]) or shares[1] == 0.0


def test_constant_work_is_found_from_the_seconds_that_ranks_compute() -> None:
    """A rank that is slower by 2 ends with the others once its share allows for the work that is not of rows."""
    constant = 0.4
    shares: tuple[float, ...] = (0.5, 0.5)

    class Steps(Ranks):
        def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
            tensor[0] = torch.tensor([0.01, 0.02], dtype=tensor.dtype)
            tensor[1] = 30 * (constant + torch.tensor(shares, dtype=tensor.dtype))
            return tensor

    speeds, ranks_here = RankSpeeds(torch.device("cpu")), Steps(rank=0, size=2)
    for _ in range(20):
        shares = speeds.measured(ranks_here).shares
    assert shares == pytest.approx(shares_of([1.0, 2.0], constant), abs=0.03)
