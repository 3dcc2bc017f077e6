"""Ratios stay finite for every log-probability that the intake accepts, and are exact up to 20 nats."""

from math import exp, isfinite

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from trainer.learning.losses.aggregate import Aggregation, StepCounts
from trainer.learning.losses.importance import Correction, Importance, Level
from trainer.learning.losses.kl import KlEstimator, kl_estimate
from trainer.learning.losses.log_ratio import LOG_RATIO_LIMIT, bounded_k3, bounded_ratio
from trainer.learning.losses.objective import LossSettings, policy_loss
from trainer.learning.losses.registry import ALGORITHMS
from trainer.learning.losses.surrogate import Clip
from trainer.learning.mismatch import measure_mismatch

LEAST_LOGPROB = float(torch.finfo(torch.float32).min)
HOSTILE = [-200.0, -1e4, -1e30, LEAST_LOGPROB]


@given(st.floats(-500.0, LOG_RATIO_LIMIT, width=32))
def test_up_to_the_limit_the_bare_formula_is_computed_bit_for_bit(log_ratio: float) -> None:
    x = torch.tensor([log_ratio], dtype=torch.float32)
    assert torch.equal(bounded_ratio(x), torch.exp(x))
    assert torch.equal(bounded_k3(x), torch.exp(x) - 1.0 - x)
    assert torch.equal(kl_estimate(-x, torch.zeros(1), KlEstimator.K3), torch.exp(x) - 1.0 - x)


@given(st.floats(-12.0, LOG_RATIO_LIMIT, width=32))
def test_the_ratio_is_that_of_double_precision_to_float32s_rounding(log_ratio: float) -> None:
    assert float(bounded_ratio(torch.tensor(log_ratio))) == pytest.approx(exp(log_ratio), rel=1e-5)


@pytest.mark.parametrize("x", [20.5, 88.0, 200.0, 1e30, 3e38])
def test_beyond_the_limit_the_value_is_that_at_the_limit(x: float) -> None:
    assert float(bounded_ratio(torch.tensor(x))) == pytest.approx(exp(20.0), rel=1e-6)
    assert float(bounded_k3(torch.tensor(x))) == pytest.approx(exp(20.0) - 21.0, rel=1e-6)


@pytest.mark.parametrize("k", [-5.0, -19.0, -21.0, -500.0])
def test_the_penalty_of_a_policy_far_below_the_reference_is_finite_and_pulls_it_back(k: float) -> None:
    logprobs = torch.tensor([k], requires_grad=True)
    estimate = kl_estimate(logprobs, torch.zeros(1), KlEstimator.K3).sum()
    estimate.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert float(logprobs.grad) == pytest.approx(1.0 - exp(min(-k, 20.0)), rel=1e-5)
    assert isfinite(float(estimate.detach()))


@pytest.mark.parametrize("behaviour", HOSTILE)
@pytest.mark.parametrize("advantage", [-2.0, 2.0])
@pytest.mark.parametrize("correction", list(Correction))
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_loss_its_gradient_and_its_sums_are_finite_beside_a_hostile_log_probability(
    name: str, correction: Correction, advantage: float, behaviour: float
) -> None:
    for level in Level:
        clip = Clip(low=None, high=None) if name == "rloo" else Clip(low=0.2, high=0.2)
        settings = LossSettings(
            clip=clip,
            importance=Importance(correction=correction, level=level),
            aggregation=Aggregation.TOKEN_MEAN,
            kl_coefficient=0.1,
        )
        logprobs_BT = torch.tensor([[-1.0, -0.5], [-2.0, -0.1]], requires_grad=True)
        behaviour_BT = torch.tensor([[behaviour, -0.5], [-2.0, -0.2]])
        loss, sums = policy_loss(
            ALGORITHMS[name].token_loss,
            logprobs_BT,
            proximal_BT=logprobs_BT.detach(),
            behaviour_BT=behaviour_BT,
            reference_BT=behaviour_BT,
            advantages_BT=torch.full((2, 2), advantage),
            mask_BT=torch.ones(2, 2).bool(),
            counts=StepCounts(num_tokens=4, num_sequences=2),
            settings=settings,
        )
        loss.backward()  # type: ignore[no-untyped-call]
        assert logprobs_BT.grad is not None
        assert bool(torch.isfinite(logprobs_BT.grad).all())
        assert isfinite(float(loss.detach()))
        assert bool(torch.isfinite(sums).all())


@pytest.mark.parametrize("behaviour", HOSTILE)
def test_the_mismatch_of_a_hostile_log_probability_is_finite(behaviour: float) -> None:
    report = measure_mismatch(
        torch.tensor([[-1.0, -1.0]]),
        torch.tensor([[behaviour, -1.0]]),
        torch.ones(1, 2).bool(),
        [(PolicyRun(Policy(0, 0), 2),)],
        consumer=Policy(0, 0),
        threshold=0.02,
    )
    found = report.current
    assert all(isfinite(value) for value in (found.mean, found.max, found.kl))
    assert found.kl == pytest.approx((exp(20.0) - 21.0) / 2, rel=1e-6)
    assert report.alarm is not None
