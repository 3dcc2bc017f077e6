import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.trainer.outcomes import outcomes
from trainer.learning.advantages import AdvantageSettings
from trainer.learning.losses.ppo import gae, ppo_advantages, value_loss

BOOTSTRAPPED = AdvantageSettings(normalise=False, gamma=1.0, gae_lambda=1.0, bootstrap_truncated=True)


def advantages_of(
    rewards: list[float], values: list[float], mask: list[int], *, gamma: float, gae_lambda: float, after: float = 0.0
) -> list[float]:
    rewards_BT, values_BT, bootstrap_B1 = (torch.tensor([x], dtype=torch.float64) for x in (rewards, values, [after]))
    mask_BT = torch.tensor([mask]).bool()
    return gae(rewards_BT, values_BT, mask_BT, bootstrap_B=bootstrap_B1[0], gamma=gamma, gae_lambda=gae_lambda)[
        0
    ].tolist()


def test_the_published_returns_of_skyrl() -> None:
    """Rewards [1, 2, 3], values [0.5, 1, 1.5], gamma and lambda 1: returns [6, 5, 3]."""
    values = [0.5, 1.0, 1.5]
    got = advantages_of([1.0, 2.0, 3.0], values, [1, 1, 1], gamma=1, gae_lambda=1)
    assert [a + v for a, v in zip(got, values, strict=True)] == pytest.approx([6.0, 5.0, 3.0])


def test_the_published_advantages_of_areal() -> None:
    """lambda 0.5, no values, a reward of 1 at the third of four tokens."""
    got = advantages_of([0, 0, 1, 0], [0] * 4, [1] * 4, gamma=1, gae_lambda=0.5)
    assert got == pytest.approx([0.25, 0.5, 1.0, 0.0])


def test_three_tokens_worked_out_by_hand() -> None:
    """deltas: 0 + 0.9*2 - 1 = 0.8; 0 + 0.9*3 - 2 = 0.7; 1 + 0.9*4 - 3 = 1.6, with gamma*lambda = 0.45."""
    got = advantages_of([0, 0, 1], [1, 2, 3], [1, 1, 1], gamma=0.9, gae_lambda=0.5, after=4)
    assert got == pytest.approx([0.8 + 0.45 * (0.7 + 0.45 * 1.6), 0.7 + 0.45 * 1.6, 1.6])


EPISODES = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=8)


@given(EPISODES, st.data(), st.floats(0.1, 1), st.floats(0, 1), st.floats(-2, 2))
def test_a_tool_gap_is_as_if_it_were_not_there(
    episode: list[tuple[float, float]], data: st.DataObject, gamma: float, gae_lambda: float, after: float
) -> None:
    rewards, values = (list(column) for column in zip(*episode, strict=True))
    plain = advantages_of(rewards, values, [1] * len(rewards), gamma=gamma, gae_lambda=gae_lambda, after=after)
    mask: list[int] = []
    wide_rewards: list[float] = []
    wide_values: list[float] = []
    for reward, value in episode:
        for _ in range(data.draw(st.integers(0, 2))):
            mask, wide_rewards, wide_values = [*mask, 0], [*wide_rewards, 99.0], [*wide_values, float("nan")]
        mask, wide_rewards, wide_values = [*mask, 1], [*wide_rewards, reward], [*wide_values, value]
    mask, wide_rewards, wide_values = [*mask, 0], [*wide_rewards, 0.0], [*wide_values, -99.0]
    gapped = advantages_of(wide_rewards, wide_values, mask, gamma=gamma, gae_lambda=gae_lambda, after=after)
    assert [a for a, bit in zip(gapped, mask, strict=True) if bit] == pytest.approx(plain)


def test_only_what_was_cut_off_is_bootstrapped_and_with_the_value_after_its_own_last_token() -> None:
    """lambda 1: the advantage of the first token is reward + value after - value before."""
    values_BU = torch.tensor([[1.0, 2.0, 5.0, 7.0], [1.0, 2.0, 5.0, 7.0], [1.0, 2.0, 5.0, 7.0]])
    given_ = outcomes(
        [10.0, 10.0, 10.0],
        [[1, 1, 0], [1, 1, 0], [1, 1, 1]],
        values_BU=values_BU,
        lengths_B=torch.tensor([2, 2, 3]),
        truncated_B=torch.tensor([True, False, True]),
    )
    got = ppo_advantages(
        given_, AdvantageSettings(normalise=False, gamma=1.0, gae_lambda=1.0, bootstrap_truncated=True)
    )
    assert got.advantages_BT[:, 0].tolist() == [10 + 5 - 1, 10 - 1, 10 + 7 - 1]
    assert got.returns_BT is not None
    assert got.returns_BT[:, 0].tolist() == [15.0, 10.0, 17.0]


def test_a_cut_off_sample_that_ends_with_a_tools_tokens_is_bootstrapped_after_them() -> None:
    values_BU = torch.tensor([[1.0, 2.0, 3.0, 7.0]])
    given_ = outcomes([0.0], [[1, 1, 0]], values_BU=values_BU, truncated_B=torch.tensor([True]))
    got = ppo_advantages(
        given_, AdvantageSettings(normalise=False, gamma=1.0, gae_lambda=1.0, bootstrap_truncated=True)
    )
    assert got.advantages_BT[0, :2].tolist() == [6.0, 5.0]
    ended = AdvantageSettings(normalise=False, gamma=1.0, gae_lambda=1.0)
    assert ppo_advantages(given_, ended).advantages_BT[0, :2].tolist() == [-1.0, -2.0]


def test_advantages_are_whitened_and_the_critics_targets_are_not() -> None:
    given_ = outcomes([4.0, 0.0], [[1, 1], [1, 1]], values_BU=torch.zeros(2, 3))
    got = ppo_advantages(given_, AdvantageSettings(gamma=1.0, gae_lambda=1.0))
    assert got.advantages_BT.tolist() == [[1.0, 1.0], [-1.0, -1.0]]
    assert got.returns_BT is not None
    assert got.returns_BT.tolist() == [[4.0, 4.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("value", "loss"),
    [
        (1.1, 0.5 * 0.9**2),  # towards the target, within reach
        (1.5, 0.5 * 0.8**2),  # too far towards it: not rewarded for more than 1.2
        (0.5, 0.5 * 1.5**2),  # away from it: pays in full
    ],
)
def test_a_value_that_moves_too_far_is_not_rewarded_for_it(value: float, loss: float) -> None:
    """The old value is 1, the target 2, the clip 0.2."""
    one = torch.ones(1, 1)
    got = value_loss(torch.full((1, 1), value), one, 2 * one, value_clip=0.2)
    assert float(got) == pytest.approx(loss)


def test_without_a_clip_the_value_loss_is_half_the_squared_error() -> None:
    assert float(value_loss(torch.zeros(1, 1), torch.ones(1, 1), torch.full((1, 1), 3.0), value_clip=None)) == 4.5


@pytest.mark.parametrize("value_clip", [None, 0.2])
def test_the_gradient_of_the_value_loss_agrees_with_finite_differences(value_clip: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    values, old, returns = (torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    assert torch.autograd.gradcheck(
        lambda v: value_loss(v, old, returns, value_clip=value_clip).mean(), values.requires_grad_()
    )
