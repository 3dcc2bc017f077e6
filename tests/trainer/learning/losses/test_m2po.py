"""M2PO's mask against a slow search, and its loss against the plain off-policy gradient."""

from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.trainer.losses import counts_of, loss_settings, random_step
from trainer.learning.losses.importance import Importance
from trainer.learning.losses.m2po import m2po_loss, outside_trust_region
from trainer.learning.losses.objective import LossSums, policy_loss

WIDE = loss_settings(importance=Importance(cap=100.0))
"""Settings whose importance weights no ratio of `random_step` exceeds."""


def mask_of(step: dict[str, torch.Tensor], m2_threshold: float) -> torch.Tensor:
    tensors = (step[name] for name in ("logprobs_BT", "behaviour_BT", "advantages_BT", "mask_BT"))
    return outside_trust_region(*tensors, m2_threshold=m2_threshold)


def concerned(step: dict[str, torch.Tensor]) -> list[tuple[float, tuple[int, int]]]:
    """Return the squared log-ratio and the place of each token that may be masked, in float64, the smallest first."""
    found = []
    for row, column in step["mask_BT"].nonzero().tolist():
        log_ratio = float(step["logprobs_BT"][row, column]) - float(step["behaviour_BT"][row, column])
        if log_ratio * float(step["advantages_BT"][row, column]) > 0:
            found.append((log_ratio**2, (row, column)))
    return sorted(found)


def slow_mask(step: dict[str, torch.Tensor], m2_threshold: float) -> set[tuple[int, int]]:
    """Mask one token after the other, the largest first, until the mean of the others is within the threshold."""
    kept, masked = concerned(step), set()
    while kept and sum(square for square, _ in kept) / len(kept) > m2_threshold:
        masked.add(kept.pop()[1])
    return masked


def places(mask_BT: torch.Tensor) -> set[tuple[int, int]]:
    return {(row, column) for row, column in mask_BT.nonzero().tolist()}


def loss_and_gradient(
    step: dict[str, torch.Tensor], untrusted_BT: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, LossSums]:
    logprobs_BT = step["logprobs_BT"].clone().requires_grad_()
    loss, sums = policy_loss(
        m2po_loss,
        logprobs_BT,
        counts=counts_of(step["mask_BT"]),
        settings=WIDE,
        untrusted_BT=untrusted_BT,
        **{name: value for name, value in step.items() if name != "logprobs_BT"},
    )
    return loss.detach(), torch.autograd.grad(loss, logprobs_BT)[0], LossSums.of(sums.tolist())


def off_policy_gradient(step: dict[str, torch.Tensor], seen_BT: torch.Tensor) -> torch.Tensor:
    """Return the gradient of -mean(pi_theta / pi_b A) by hand, of the seen tokens over all tokens."""
    ratio_BT = torch.exp(step["logprobs_BT"] - step["behaviour_BT"])
    return -(ratio_BT * step["advantages_BT"]).masked_fill(~seen_BT, 0.0) / step["mask_BT"].sum()


def test_a_case_worked_by_hand() -> None:
    """Squares of C: 0.01, 0.04, 0.16 with mean 0.07. Without the largest the mean is 0.025.

    Of the first row, the third and fourth token move back towards 1, the fifth has no advantage, the sixth is padding.
    """
    log_ratios = torch.tensor([[0.1, 0.4, -0.3, -0.9, 0.8, 9.0], [-0.2, 0.3, 0.0, 0.0, 0.0, float("nan")]])
    advantages = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0, 1.0], [-1.0, -1.0, -1.0, 0.0, 0.0, -1.0]])
    step = {
        "logprobs_BT": log_ratios - 1.0,
        "behaviour_BT": torch.full((2, 6), -1.0),
        "advantages_BT": advantages,
        "mask_BT": torch.tensor([[True] * 5 + [False]] * 2),
    }
    assert places(mask_of(step, 0.07001)) == set()
    assert places(mask_of(step, 0.06999)) == places(mask_of(step, 0.02501)) == {(0, 1)}
    assert places(mask_of(step, 0.02499)) == {(0, 1), (1, 0)}
    assert places(mask_of(step, 0.0099)) == {(0, 0), (0, 1), (1, 0)}


@given(seed=st.integers(0, 2**31), m2_threshold=st.floats(1e-3, 0.5))
def test_the_mask_is_that_of_a_slow_search(seed: int, m2_threshold: float) -> None:
    step = random_step(seed, dtype=torch.float64)
    assert places(mask_of(step, m2_threshold)) == slow_mask(step, m2_threshold)


@given(seed=st.integers(0, 2**31), m2_threshold=st.floats(1e-3, 0.5))
def test_the_rest_is_within_the_threshold_and_no_smaller_mask_would_do(seed: int, m2_threshold: float) -> None:
    step = random_step(seed)
    masked, may_be_masked = places(mask_of(step, m2_threshold)), concerned(step)
    assert masked <= {place for _, place in may_be_masked}
    kept = [square for square, place in may_be_masked if place not in masked]
    gone = [square for square, place in may_be_masked if place in masked]
    assert not kept or sum(kept) / len(kept) <= m2_threshold * (1 + 1e-9)
    if gone:
        # Any mask that is smaller keeps as many tokens as this, and at least the sum of these squares.
        assert max(kept, default=0.0) < min(gone)
        assert (sum(kept) + min(gone)) / (len(kept) + 1) > m2_threshold * (1 - 1e-9)


@given(seed=st.integers(0, 2**31), order=st.permutations(range(6)))
def test_neither_the_order_of_rows_nor_padding_changes_the_mask(seed: int, order: list[int]) -> None:
    step = random_step(seed)
    mask_BT = mask_of(step, 0.04)
    assert torch.equal(mask_of({name: value[order] for name, value in step.items()}, 0.04), mask_BT[order])
    for name in ("logprobs_BT", "behaviour_BT", "advantages_BT"):
        step[name] = step[name].masked_fill(~step["mask_BT"], float("nan"))
    assert torch.equal(mask_of(step, 0.04), mask_BT)


def test_equal_squares_are_masked_together() -> None:
    step = {
        "logprobs_BT": torch.tensor([[0.1, 0.5, -0.5]]),
        "behaviour_BT": torch.zeros(1, 3),
        "advantages_BT": torch.tensor([[1.0, 1.0, -1.0]]),
        "mask_BT": torch.ones(1, 3).bool(),
    }
    assert mask_of(step, 0.14).tolist() == [[False, True, True]]


def test_without_a_masked_token_the_gradient_is_the_off_policy_policy_gradient() -> None:
    step = random_step(4, dtype=torch.float64)
    untrusted_BT = mask_of(step, 1.0)
    assert not untrusted_BT.any()
    loss, gradient, sums = loss_and_gradient(step, untrusted_BT)
    expected_BT = off_policy_gradient(step, step["mask_BT"])
    torch.testing.assert_close(gradient, expected_BT)
    torch.testing.assert_close(loss, expected_BT.sum())
    assert (sums.clipped_low, sums.clipped_high) == (0.0, 0.0)
    assert torch.equal(gradient, loss_and_gradient(step, None)[1])


def test_masked_tokens_give_no_gradient_and_count_in_the_mean_and_as_clipped() -> None:
    step = random_step(4, dtype=torch.float64)
    untrusted_BT = mask_of(step, 0.04)
    loss, gradient, sums = loss_and_gradient(step, untrusted_BT)
    expected_BT = off_policy_gradient(step, step["mask_BT"] & ~untrusted_BT)
    torch.testing.assert_close(gradient, expected_BT)
    torch.testing.assert_close(loss, expected_BT.sum())
    is_low_BT = untrusted_BT & (step["logprobs_BT"] < step["behaviour_BT"])
    assert sums.clipped_low == is_low_BT.sum() > 0
    assert sums.clipped_high == (untrusted_BT & ~is_low_BT).sum() > 0


def test_the_gradient_agrees_with_finite_differences() -> None:
    """The mask is a constant: it is that of the weights before the update."""
    step = random_step(3, rows=3, width=4, dtype=torch.float64)
    untrusted_BT = mask_of(step, 0.04)
    assert untrusted_BT.any()
    rest = {name: value for name, value in step.items() if name != "logprobs_BT"}

    def loss(logprobs_BT: torch.Tensor) -> torch.Tensor:
        counts = counts_of(step["mask_BT"])
        return policy_loss(m2po_loss, logprobs_BT, counts=counts, settings=WIDE, untrusted_BT=untrusted_BT, **rest)[0]

    assert torch.autograd.gradcheck(loss, step["logprobs_BT"].requires_grad_())


@pytest.mark.parametrize("behaviour", [-200.0, -1e30])
def test_a_hostile_log_probability_is_masked_and_spoils_nothing(behaviour: float) -> None:
    step = {
        "logprobs_BT": torch.tensor([[-1.0, -1.0 + sqrt(0.03)]]),
        "behaviour_BT": torch.tensor([[behaviour, -1.0]]),
        "advantages_BT": torch.ones(1, 2),
        "mask_BT": torch.ones(1, 2).bool(),
    }
    assert mask_of(step, 0.04).tolist() == [[True, False]]
