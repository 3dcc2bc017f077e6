from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.trainer.outcomes import outcomes
from trainer.learning.advantages import (
    discounted_returns,
    group_advantages,
    leave_one_out_advantages,
    of_samples,
    penalised_rewards,
    token_rewards,
    whiten,
)

SAMPLES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4)), min_size=1, max_size=40)


def test_rewards_are_centred_and_scaled_by_the_groups_own_spread() -> None:
    got = group_advantages([1.0, 0.0, 0.0, 1.0, 0.5], [7, 7, 7, 7, 8], normalise_std=True)
    assert got == pytest.approx((1.0, -1.0, -1.0, 1.0, 0.0), abs=1e-3)


def test_the_spread_is_the_populations() -> None:
    """[1, 0, 0]: 1.4142 with the population's deviation, 1.1547 with the sample's."""
    assert group_advantages([1.0, 0.0, 0.0], [0] * 3, normalise_std=True)[0] == pytest.approx(1.4142, abs=1e-3)


def test_without_normalisation_only_the_mean_is_taken_off() -> None:
    got = group_advantages([0.9, 0.1, 0.4, 0.2], [1, 1, 2, 2], normalise_std=False)
    assert got == pytest.approx((0.4, -0.4, 0.1, -0.1))


@pytest.mark.parametrize("normalise_std", [True, False])
def test_a_group_of_one_and_a_group_of_equals_teach_nothing(normalise_std: bool) -> None:
    got = group_advantages([0.7, 1 / 3, 1 / 3, 1 / 3], [0, 1, 1, 1], normalise_std=normalise_std)
    assert got == pytest.approx((0.0,) * 4, abs=1e-9)
    assert leave_one_out_advantages([0.7, 1 / 3, 1 / 3, 1 / 3], [0, 1, 1, 1]) == pytest.approx((0.0,) * 4, abs=1e-9)


def test_the_published_leave_one_out_of_skyrl() -> None:
    """Groups [6, 3], [9, 12] and [1]."""
    got = leave_one_out_advantages([6.0, 3.0, 9.0, 12.0, 1.0], [0, 0, 1, 1, 2])
    assert got == pytest.approx((3.0, -3.0, -3.0, 3.0, 0.0))


@given(SAMPLES)
def test_leave_one_out_is_the_reward_less_the_mean_of_the_others(samples: list[tuple[float, int]]) -> None:
    rewards, groups = zip(*samples, strict=True)
    got = leave_one_out_advantages(rewards, groups)
    for i, (reward, group) in enumerate(samples):
        others = [r for j, (r, g) in enumerate(samples) if g == group and j != i]
        assert got[i] == pytest.approx(reward - sum(others) / len(others) if others else 0.0, abs=1e-9)


@given(SAMPLES, st.booleans())
def test_each_groups_advantages_sum_to_zero_and_keep_the_order_of_rewards(
    samples: list[tuple[float, int]], normalise_std: bool
) -> None:
    rewards, groups = zip(*samples, strict=True)
    got = group_advantages(rewards, groups, normalise_std=normalise_std)
    for group in set(groups):
        members = [(r, a) for r, g, a in zip(rewards, groups, got, strict=True) if g == group]
        assert sum(a for _, a in members) == pytest.approx(0, abs=1e-6)
        ordered = [a for _, a in sorted(members)]
        assert ordered == sorted(ordered)


@given(SAMPLES, st.randoms())
def test_the_order_of_arrival_does_not_matter(samples: list[tuple[float, int]], random: Random) -> None:
    order = list(range(len(samples)))
    random.shuffle(order)
    rewards, groups = zip(*samples, strict=True)
    straight = group_advantages(rewards, groups, normalise_std=True)
    shuffled = group_advantages([rewards[i] for i in order], [groups[i] for i in order], normalise_std=True)
    assert shuffled == tuple(straight[i] for i in order)


def test_a_reward_without_a_group_is_refused() -> None:
    with pytest.raises(ValueError):
        group_advantages([1.0], [], normalise_std=True)


def test_every_token_of_a_sample_has_the_samples_advantage() -> None:
    got = of_samples((1.0, -2.0), torch.ones(2, 3).bool())
    assert got.advantages_BT.tolist() == [[1.0] * 3, [-2.0] * 3]
    assert got.returns_BT is None


def test_the_reward_stands_at_the_last_token_that_was_sampled_and_the_penalty_at_each() -> None:
    kl_BT = torch.tensor([[0.1, 0.2, float("nan"), 0.4], [0.5, float("nan"), float("nan"), float("nan")]])
    given_ = outcomes([1.0, 2.0], [[1, 1, 0, 1], [1, 0, 0, 0]], kl_BT=kl_BT)
    expected = torch.tensor([[-0.1, -0.2, 0.0, 0.6], [1.5, 0.0, 0.0, 0.0]]).double()
    torch.testing.assert_close(token_rewards(given_), expected)
    assert penalised_rewards(given_) == pytest.approx((0.3, 1.5))


def test_a_sample_whose_last_tokens_are_a_tools_is_rewarded_where_the_policy_last_spoke() -> None:
    assert token_rewards(outcomes([3.0], [[1, 1, 0, 0]])).tolist() == [[0.0, 3.0, 0.0, 0.0]]


def test_the_published_discounted_returns_of_skyrl() -> None:
    """REINFORCE++ with rewards [1, 2, 3] and gamma 0.5."""
    got = discounted_returns(torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3).bool(), gamma=0.5)
    assert got.tolist() == [[2.75, 3.5, 3.0]]


def test_a_gap_discounts_nothing() -> None:
    rewards_BT, mask_BT = torch.tensor([[1.0, 0.0, 0.0, 2.0, 3.0]]), torch.tensor([[1, 0, 0, 1, 1]]).bool()
    got = discounted_returns(rewards_BT, mask_BT, gamma=0.5)
    assert got[mask_BT].tolist() == [2.75, 3.5, 3.0]


@given(st.integers(0, 2**31))
def test_whitened_tokens_have_mean_0_and_deviation_1_whatever_stands_in_the_padding(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask_BT = torch.rand(4, 6, generator=generator) < 0.6
    mask_BT[0, :2] = True
    values_BT = (7 + 3 * torch.randn(4, 6, generator=generator, dtype=torch.float64)).masked_fill(
        ~mask_BT, float("nan")
    )
    got = whiten(values_BT, mask_BT)
    assert float(got[mask_BT].mean()) == pytest.approx(0, abs=1e-9)
    assert float(got[mask_BT].std(correction=0)) == pytest.approx(1, rel=1e-6)
    assert not got[~mask_BT].any()


def test_equal_numbers_whiten_to_zero() -> None:
    assert not whiten(torch.full((2, 3), 1 / 3, dtype=torch.float64), torch.ones(2, 3).bool()).any()


@pytest.mark.parametrize("reward", [0.1, 1e6, -1e6 + 0.1, 1 / 3])
@pytest.mark.parametrize("size", [2, 3, 7, 10])
def test_equal_rewards_of_any_size_have_advantages_of_exactly_zero(reward: float, size: int) -> None:
    rewards, groups = [reward] * size, [0] * size
    assert group_advantages(rewards, groups, normalise_std=True) == (0.0,) * size
    assert leave_one_out_advantages(rewards, groups) == (0.0,) * size


def test_nearly_equal_rewards_at_the_bound_keep_their_order_and_their_size() -> None:
    low, high = 1e6 - 1.0, 1e6
    assert group_advantages([low, high], [0, 0], normalise_std=True) == pytest.approx((-1.0, 1.0), rel=1e-3)


@pytest.mark.parametrize("reward", [1e200, float("inf"), float("nan")])
def test_rewards_without_a_finite_square_are_refused(reward: float) -> None:
    for advantages in (lambda r, g: group_advantages(r, g, normalise_std=True), leave_one_out_advantages):
        with pytest.raises(ValueError, match="scale the rewards"):
            advantages([reward, 0.0], [0, 0])
