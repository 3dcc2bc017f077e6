"""Properties of the loss of every algorithm: padding, micro-batches, order of rows, gradients, expectations."""

from math import exp
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.trainer.losses import COUPLED, counts_of, loss_settings, random_step
from trainer.learning.losses.aggregate import Aggregation, StepCounts
from trainer.learning.losses.importance import Correction, Importance, Level
from trainer.learning.losses.kl import KlEstimator
from trainer.learning.losses.objective import LossSettings, LossSums, policy_loss
from trainer.learning.losses.registry import ALGORITHMS
from trainer.learning.losses.surrogate import Clip

NAMES = sorted(ALGORITHMS)
SETTINGS = [
    loss_settings(),
    loss_settings(importance=COUPLED),
    loss_settings(importance=Importance(correction=Correction.MASKED), aggregation=Aggregation.SEQUENCE_MEAN),
    loss_settings(importance=Importance(level=Level.SEQUENCE_GEOMETRIC), aggregation=Aggregation.CONSTANT),
    loss_settings(kl_coefficient=0.1, kl_estimator=KlEstimator.K3, clip=Clip(low=0.2, high=0.28, dual=3.0)),
]
each_algorithm = pytest.mark.parametrize("name", NAMES)
each_setting = pytest.mark.parametrize("settings", SETTINGS)


def loss_and_gradient(
    name: str, step: dict[str, torch.Tensor], settings: LossSettings, counts: StepCounts | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs_BT = step["logprobs_BT"].clone().requires_grad_()
    loss, _ = policy_loss(
        ALGORITHMS[name].token_loss,
        logprobs_BT,
        counts=counts or counts_of(step["mask_BT"]),
        settings=settings,
        **{key: value for key, value in step.items() if key != "logprobs_BT"},
    )
    (gradient,) = torch.autograd.grad(loss, logprobs_BT)
    return loss.detach(), gradient


def chosen(step: dict[str, torch.Tensor], rows: Any) -> dict[str, torch.Tensor]:
    return {name: value[rows] for name, value in step.items()}


@each_setting
@each_algorithm
def test_what_stands_outside_the_mask_does_not_matter_not_even_nan(name: str, settings: LossSettings) -> None:
    step = random_step(0)
    spoilt = {
        key: value if key == "mask_BT" else value.masked_fill(~step["mask_BT"], float("nan"))
        for key, value in step.items()
    }
    loss, gradient = loss_and_gradient(name, step, settings)
    spoilt_loss, spoilt_gradient = loss_and_gradient(name, spoilt, settings)
    assert torch.equal(loss, spoilt_loss)
    assert torch.equal(gradient, spoilt_gradient)
    assert not gradient[~step["mask_BT"]].any()


@each_setting
@each_algorithm
def test_padding_to_a_wider_step_changes_nothing(name: str, settings: LossSettings) -> None:
    step = random_step(1)
    wide = {key: torch.nn.functional.pad(value, (0, 3), value=0) for key, value in step.items()}
    loss, gradient = loss_and_gradient(name, step, settings)
    wide_loss, wide_gradient = loss_and_gradient(name, wide, settings)
    torch.testing.assert_close(wide_loss, loss, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(wide_gradient[:, :-3], gradient, rtol=1e-5, atol=1e-7)


@given(
    name=st.sampled_from(NAMES), settings=st.sampled_from(SETTINGS), seed=st.integers(0, 2**31), cut=st.integers(1, 5)
)
def test_micro_batches_sum_to_the_loss_of_the_whole(name: str, settings: LossSettings, seed: int, cut: int) -> None:
    step = random_step(seed)
    counts = counts_of(step["mask_BT"])
    whole, gradient = loss_and_gradient(name, step, settings)
    parts = [loss_and_gradient(name, chosen(step, rows), settings, counts) for rows in (slice(cut), slice(cut, None))]
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), gradient, rtol=1e-5, atol=1e-7)


@given(name=st.sampled_from(NAMES), settings=st.sampled_from(SETTINGS), order=st.permutations(range(6)))
def test_the_order_of_rows_does_not_matter(name: str, settings: LossSettings, order: list[int]) -> None:
    step = random_step(2)
    loss, gradient = loss_and_gradient(name, step, settings)
    permuted_loss, permuted_gradient = loss_and_gradient(name, chosen(step, order), settings)
    torch.testing.assert_close(permuted_loss, loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(permuted_gradient, gradient[order], rtol=1e-5, atol=1e-7)


@each_setting
@pytest.mark.parametrize("name", [name for name in NAMES if name != "cispo"])
def test_the_gradient_agrees_with_finite_differences(name: str, settings: LossSettings) -> None:
    """CISPO's is not that of its value: the weight is held fixed. It has a test of its own."""
    step = random_step(3, rows=3, width=4, dtype=torch.float64)
    rest = {key: value for key, value in step.items() if key != "logprobs_BT"}

    def loss(logprobs_BT: torch.Tensor) -> torch.Tensor:
        return policy_loss(
            ALGORITHMS[name].token_loss, logprobs_BT, counts=counts_of(step["mask_BT"]), settings=settings, **rest
        )[0]

    assert torch.autograd.gradcheck(loss, step["logprobs_BT"].requires_grad_())


@each_algorithm
def test_on_policy_the_expected_gradient_is_the_policy_gradient(name: str) -> None:
    """Over all tokens of a small distribution, weighted by how often each is sampled."""
    logits_V = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    reward_V = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    logprobs_V = torch.log_softmax(logits_V, 0)
    start_V = logprobs_V.detach()
    loss = torch.zeros((), dtype=torch.float64)
    for v in range(3):
        one = start_V[v].view(1, 1)
        share, _ = policy_loss(
            ALGORITHMS[name].token_loss,
            logprobs_V[v].view(1, 1),
            proximal_BT=one,
            behaviour_BT=one,
            reference_BT=None,
            advantages_BT=reward_V[v].view(1, 1),
            mask_BT=torch.ones(1, 1, dtype=torch.bool),
            counts=StepCounts(num_tokens=1, num_sequences=1),
            settings=loss_settings(),
        )
        loss = loss + exp(start_V[v]) * share
    (got,) = torch.autograd.grad(loss, logits_V, retain_graph=True)
    (expected,) = torch.autograd.grad(-(logprobs_V.exp() * reward_V).sum(), logits_V)
    torch.testing.assert_close(got, expected)


@each_algorithm
def test_off_policy_the_exact_weight_gives_the_same_expected_gradient(name: str) -> None:
    """Sampled by another policy, weighted to the policy of the step's start, without a bound that binds."""
    logits_V = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    behaviour_V = torch.log_softmax(torch.tensor([-0.4, 0.5, 0.1], dtype=torch.float64), 0)
    reward_V = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    logprobs_V = torch.log_softmax(logits_V, 0)
    loss = torch.zeros((), dtype=torch.float64)
    for v in range(3):
        share, _ = policy_loss(
            ALGORITHMS[name].token_loss,
            logprobs_V[v].view(1, 1),
            proximal_BT=logprobs_V[v].detach().view(1, 1),
            behaviour_BT=behaviour_V[v].view(1, 1),
            reference_BT=None,
            advantages_BT=reward_V[v].view(1, 1),
            mask_BT=torch.ones(1, 1, dtype=torch.bool),
            counts=StepCounts(num_tokens=1, num_sequences=1),
            settings=loss_settings(importance=Importance(cap=50.0)),
        )
        loss = loss + exp(behaviour_V[v]) * share
    (got,) = torch.autograd.grad(loss, logits_V, retain_graph=True)
    (expected,) = torch.autograd.grad(-(logprobs_V.exp() * reward_V).sum(), logits_V)
    torch.testing.assert_close(got, expected)


def test_a_rejected_token_still_counts_in_the_mean() -> None:
    one, far = torch.zeros(1, 2), torch.tensor([[0.0, 3.0]])
    settings = loss_settings(importance=Importance(correction=Correction.MASKED, low=0.5, high=2.0))
    loss, sums = policy_loss(
        ALGORITHMS["grpo"].token_loss,
        one,
        proximal_BT=one,
        behaviour_BT=one - far,
        reference_BT=None,
        advantages_BT=torch.ones(1, 2),
        mask_BT=torch.ones(1, 2).bool(),
        settings=settings,
        counts=StepCounts(num_tokens=2, num_sequences=1),
    )
    assert float(loss) == pytest.approx(-0.5)
    read = LossSums.of(sums.tolist())
    assert (read.cut, read.weight) == (1.0, 1.0)


def test_the_clip_is_around_the_proximal_policy_and_the_weight_from_the_behaviour_policy() -> None:
    step = {
        "logprobs_BT": torch.tensor([[0.0, 0.5]]),
        "proximal_BT": torch.zeros(1, 2),
        "behaviour_BT": torch.tensor([[-0.5, 0.0]]),
        "reference_BT": torch.zeros(1, 2),
        "advantages_BT": torch.ones(1, 2),
        "mask_BT": torch.ones(1, 2).bool(),
    }
    loss, gradient = loss_and_gradient("grpo", step, loss_settings())
    assert float(loss) == pytest.approx(-(exp(0.5) * 1.0 + 1.0 * 1.3) / 2)
    assert gradient[0, 0] != 0 == gradient[0, 1]
    coupled, _ = loss_and_gradient("grpo", step, loss_settings(importance=COUPLED))
    assert float(coupled) == pytest.approx(-1.3)


def test_the_penalty_is_added_after_the_weight() -> None:
    """Weight 2 on the policy's part alone: k3 of a log-ratio of 0.5 is exp(-0.5) - 0.5."""
    zero = torch.zeros(1, 1)
    loss, _ = policy_loss(
        ALGORITHMS["grpo"].token_loss,
        zero,
        proximal_BT=zero,
        behaviour_BT=zero - 5.0,
        reference_BT=zero - 0.5,
        advantages_BT=zero + 1.0,
        mask_BT=torch.ones(1, 1).bool(),
        counts=StepCounts(num_tokens=1, num_sequences=1),
        settings=loss_settings(kl_coefficient=10.0),
    )
    assert float(loss) == pytest.approx(-2.0 + 10.0 * (exp(-0.5) - 0.5), rel=1e-5)
