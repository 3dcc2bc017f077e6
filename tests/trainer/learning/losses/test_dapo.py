import pytest
import torch

from tests.support.trainer.outcomes import outcomes
from trainer.learning.advantages import AdvantageSettings
from trainer.learning.losses.dapo import dapo_advantages, overlong_punishments


def test_the_punishment_rises_over_the_last_tokens_before_the_limit() -> None:
    """L_max 20, L_cache 4: nothing up to 16, all of it at 20."""
    got = overlong_punishments([1, 16, 17, 18, 20, 25], max_tokens=20, cache_tokens=4)
    assert got == pytest.approx((0.0, 0.0, -0.25, -0.5, -1.0, -1.0))


def test_the_penalty_of_length_is_part_of_the_reward_that_the_group_compares() -> None:
    settings = AdvantageSettings(normalise=False, overlong_cache_tokens=2, max_tokens=4)
    given = outcomes([1.0, 1.0], [[1] * 4] * 2, lengths_B=torch.tensor([4, 2]))
    assert dapo_advantages(given, settings).advantages_BT[:, 0].tolist() == [-0.5, 0.5]


def test_what_was_cut_off_teaches_nothing_and_stays_in_its_groups_baseline() -> None:
    settings = AdvantageSettings(normalise=False, overlong_filter=True)
    given = outcomes([0.0, 1.0, 0.5], [[1, 1]] * 3, truncated_B=torch.tensor([True, False, False]))
    assert dapo_advantages(given, settings).advantages_BT[:, 0].tolist() == [0.0, 0.5, 0.0]


def test_a_group_in_which_all_are_right_teaches_nothing() -> None:
    assert not dapo_advantages(outcomes([1.0] * 4, [[1]] * 4), AdvantageSettings()).advantages_BT.any()
