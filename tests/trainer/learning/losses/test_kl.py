from math import exp

import pytest
import torch

from trainer.learning.losses.kl import KlEstimator, kl_estimate


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [(KlEstimator.K1, 0.5), (KlEstimator.K2, 0.125), (KlEstimator.K3, exp(-0.5) - 1 + 0.5)],
)
def test_each_estimator_worked_out_by_hand(estimator: KlEstimator, expected: float) -> None:
    got = kl_estimate(torch.tensor([[-1.0]]), torch.tensor([[-1.5]]), estimator)
    assert float(got) == pytest.approx(expected, rel=1e-6)


LOGITS = torch.tensor([0.3, -0.2, 0.9, -1.0], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([0.1, 0.4, 0.2, -0.7], dtype=torch.float64), 0)


@pytest.mark.parametrize("estimator", [KlEstimator.K1, KlEstimator.K3])
def test_in_expectation_k1_and_k3_are_the_divergence(estimator: KlEstimator) -> None:
    policy = torch.log_softmax(LOGITS, 0)
    exact = (policy.exp() * (policy - REFERENCE)).sum()
    torch.testing.assert_close((policy.exp() * kl_estimate(policy, REFERENCE, estimator)).sum(), exact)


def expected_gradient(estimator: KlEstimator) -> torch.Tensor:
    """Return the gradient of the estimate as a loss, over all tokens, weighted by how often each is sampled."""
    logits = LOGITS.clone().requires_grad_()
    policy = torch.log_softmax(logits, 0)
    (gradient,) = torch.autograd.grad((policy.detach().exp() * kl_estimate(policy, REFERENCE, estimator)).sum(), logits)
    return gradient


def test_as_a_loss_k1_has_no_gradient_k2_that_of_the_divergence_and_k3_that_of_the_reversed_one() -> None:
    logits = LOGITS.clone().requires_grad_()
    policy = torch.log_softmax(logits, 0)
    (forward,) = torch.autograd.grad((policy.exp() * (policy - REFERENCE)).sum(), logits, retain_graph=True)
    (reversed_,) = torch.autograd.grad((REFERENCE.exp() * (REFERENCE - policy)).sum(), logits)
    torch.testing.assert_close(expected_gradient(KlEstimator.K1), torch.zeros_like(LOGITS), atol=1e-12, rtol=0.0)
    torch.testing.assert_close(expected_gradient(KlEstimator.K2), forward)
    torch.testing.assert_close(expected_gradient(KlEstimator.K3), reversed_)
