from math import exp, log, prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.learning.losses.importance import Correction, Importance, Level, importance_weights, spread_of_weights

RATIOS = st.lists(st.floats(0.01, 100), min_size=1, max_size=6)


def weights(
    ratios: list[float], importance: Importance, mask: list[int] | None = None
) -> tuple[list[float], list[bool]]:
    proximal_BT = torch.tensor([[log(ratio) for ratio in ratios]], dtype=torch.float64)
    mask_BT = torch.tensor([mask or [1] * len(ratios)]).bool()
    weight_BT, cut_BT = importance_weights(proximal_BT, torch.zeros_like(proximal_BT), mask_BT, importance)
    return weight_BT[0].tolist(), cut_BT[0].tolist()


def test_the_published_weights_of_nemo_rl() -> None:
    """tests/unit/algorithms/test_loss_functions.py of NVIDIA-NeMo/RL: previous policy -1, generation as below."""
    got, _ = importance_weights(
        torch.full((1, 3), -1.0), torch.tensor([[-0.5, -1.5, -0.8]]), torch.ones(1, 3).bool(), Importance()
    )
    torch.testing.assert_close(got, torch.tensor([[0.6065, 1.6487, 0.8187]]), atol=1e-4, rtol=0.0)


def test_truncation_keeps_every_token_and_masking_takes_out_what_is_far() -> None:
    ratios = [0.3, 0.6, 1.0, 1.9, 7.0]
    truncated, cut = weights(ratios, Importance(cap=2.0))
    assert truncated == pytest.approx([0.3, 0.6, 1.0, 1.9, 2.0])
    assert cut == [False, False, False, False, True]
    masked, rejected = weights(ratios, Importance(correction=Correction.MASKED, low=0.5, high=2.0))
    assert masked == pytest.approx([0.0, 0.6, 1.0, 1.9, 0.0])
    assert rejected == [True, False, False, False, True]


def test_at_sequence_level_all_tokens_of_a_sample_share_one_weight() -> None:
    ratios = [0.5, 2.0, 3.0]
    assert weights(ratios, Importance(level=Level.SEQUENCE, cap=1000.0))[0] == pytest.approx([3.0] * 3)
    geometric = Importance(level=Level.SEQUENCE_GEOMETRIC, cap=1000.0)
    assert weights(ratios, geometric)[0] == pytest.approx([3 ** (1 / 3)] * 3)
    cut = weights(ratios, Importance(level=Level.SEQUENCE, cap=2.0))
    assert cut[0] == pytest.approx([2.0] * 3)
    assert cut[1] == [True] * 3
    rejected = Importance(level=Level.SEQUENCE, correction=Correction.MASKED, low=0.5, high=2.0)
    assert weights(ratios, rejected) == ([0.0] * 3, [True] * 3)


def test_tokens_that_were_not_sampled_do_not_enter_a_sequences_weight() -> None:
    importance = Importance(level=Level.SEQUENCE_GEOMETRIC, cap=100.0)
    assert weights([4.0, 1e9, 1.0], importance, [1, 0, 1])[0][0] == pytest.approx(2.0)
    assert weights([4.0, 1e9, 1.0], Importance(level=Level.SEQUENCE, cap=100.0), [1, 0, 1])[0][0] == pytest.approx(4.0)


def test_without_correction_every_weight_is_one() -> None:
    assert weights([0.1, 9.0], Importance(correction=Correction.NONE)) == ([1.0, 1.0], [False, False])


@given(RATIOS)
def test_a_product_that_overflows_is_cut_like_any_other(ratios: list[float]) -> None:
    huge = torch.full((1, 3), 500.0)
    for level in (Level.SEQUENCE, Level.TOKEN):
        got, _ = importance_weights(huge, -huge, torch.ones(1, 3).bool(), Importance(level=level, cap=3.0))
        assert got.tolist() == [[3.0] * 3]
    assert weights(ratios, Importance(level=Level.SEQUENCE, cap=1e15))[0][0] == pytest.approx(prod(ratios))


def test_no_gradient_passes_through_a_weight() -> None:
    proximal_BT = torch.zeros(1, 2, requires_grad=True)
    got, _ = importance_weights(proximal_BT, torch.zeros(1, 2), torch.ones(1, 2).bool(), Importance())
    assert not got.requires_grad


def test_over_the_behaviour_policy_the_exact_weights_average_to_one() -> None:
    behaviour, proximal = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    got, _ = importance_weights(
        proximal.log()[None], behaviour.log()[None], torch.ones(1, 3).bool(), Importance(cap=exp(9))
    )
    assert float((got[0] * behaviour).sum()) == pytest.approx(1.0)


def spread(ratios: list[float], importance: Importance, mask: list[int] | None = None) -> tuple[float, float]:
    proximal_BT = torch.tensor([[log(ratio) for ratio in ratios]], dtype=torch.float64)
    mask_BT = torch.tensor([mask or [1] * len(ratios)]).bool()
    # Padding may hold anything.
    proximal_BT = proximal_BT.masked_fill(~mask_BT, float("nan"))
    found = spread_of_weights(proximal_BT, torch.zeros_like(proximal_BT), mask_BT, importance)
    return found.largest, found.effective_share


def test_the_spread_of_weights_worked_out_by_hand() -> None:
    # Bounded to 1, 1, 2: (1 + 1 + 2)^2 / (3 * 6). The largest is told before its bound.
    assert spread([1.0, 1.0, 8.0, 99.0], Importance(cap=2.0), [1, 1, 1, 0]) == pytest.approx((8.0, 16 / 18))
    masked = Importance(correction=Correction.MASKED, low=0.5, high=2.0)
    assert spread([1.0, 8.0], masked) == pytest.approx((8.0, 0.5))
    assert spread([0.1, 8.0], masked) == pytest.approx((8.0, 0.0))
    assert spread([3.0, 8.0], Importance(correction=Correction.NONE)) == (1.0, 1.0)
    assert spread([2.0, 3.0], Importance(level=Level.SEQUENCE, cap=100.0)) == pytest.approx((6.0, 1.0))


@given(RATIOS)
def test_the_effective_share_is_between_that_of_one_token_and_that_of_all(ratios: list[float]) -> None:
    _, share = spread(ratios, Importance(cap=1000.0))
    assert 1 / len(ratios) - 1e-9 <= share <= 1 + 1e-9


def test_a_hostile_log_probability_leaves_the_spread_finite() -> None:
    logs_BT = torch.tensor([[0.0, 0.0]])
    found = spread_of_weights(logs_BT, torch.tensor([[-200.0, 0.0]]), torch.ones(1, 2).bool(), Importance())
    assert found.largest == pytest.approx(exp(20))
    assert 0 < found.effective_share <= 1
