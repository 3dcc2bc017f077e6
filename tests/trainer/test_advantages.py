from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages import group_advantages

SAMPLES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4)), min_size=1, max_size=40)


def test_rewards_are_centred_and_scaled_by_the_groups_own_spread() -> None:
    got = group_advantages([1.0, 0.0, 0.0, 1.0, 0.5], [7, 7, 7, 7, 8], normalise_std=True)
    assert got == pytest.approx((1.0, -1.0, -1.0, 1.0, 0.0), abs=1e-3)


def test_without_normalisation_only_the_mean_is_taken_off() -> None:
    got = group_advantages([0.9, 0.1, 0.4, 0.2], [1, 1, 2, 2], normalise_std=False)
    assert got == pytest.approx((0.4, -0.4, 0.1, -0.1))


@pytest.mark.parametrize("normalise_std", [True, False])
def test_a_group_of_one_and_a_group_of_equals_teach_nothing(normalise_std: bool) -> None:
    got = group_advantages([0.7, 1 / 3, 1 / 3, 1 / 3], [0, 1, 1, 1], normalise_std=normalise_std)
    assert got == pytest.approx((0.0,) * 4, abs=1e-9)


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
