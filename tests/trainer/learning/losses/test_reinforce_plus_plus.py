import torch

from tests.support.trainer.outcomes import outcomes
from trainer.learning.advantages import AdvantageSettings
from trainer.learning.losses.reinforce_plus_plus import reinforce_plus_plus_advantages


def test_advantages_are_whitened_returns_over_the_tokens_of_the_whole_step() -> None:
    """Two prompts of one sample each: returns 1, 1 and 0 have mean 2/3 and deviation sqrt(2)/3."""
    given = outcomes([1.0, 0.0], [[1, 1], [1, 0]], groups=(0, 1))
    got = reinforce_plus_plus_advantages(given, AdvantageSettings()).advantages_BT
    torch.testing.assert_close(got, torch.tensor([[0.5**0.5, 0.5**0.5], [-(2**0.5), 0.0]]).double())


def test_a_token_answers_for_the_penalty_of_what_follows_and_not_of_what_came_before() -> None:
    kl_BT = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    given = outcomes([2.0, 2.0], [[1, 1, 1]] * 2, kl_BT=kl_BT)
    got = reinforce_plus_plus_advantages(given, AdvantageSettings(gamma=1.0)).advantages_BT
    assert got[0, 0] == got[1, 0]
    assert got[0, 1] > got[1, 1]


def test_discounting_makes_earlier_tokens_answer_less_for_the_end() -> None:
    got = reinforce_plus_plus_advantages(outcomes([1.0], [[1, 1, 1]]), AdvantageSettings(gamma=0.5)).advantages_BT[0]
    assert got[0] < got[1] < got[2]
