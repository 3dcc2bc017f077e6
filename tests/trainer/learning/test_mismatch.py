from math import exp

import pytest
import torch

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from trainer.learning.mismatch import Mismatch, measure_mismatch

NOW, BEFORE, OTHER_FORK = Policy(1, 4), Policy(1, 3), Policy(0, 4)
ROWS = (
    (PolicyRun(NOW, 2),),
    (PolicyRun(BEFORE, 2),),
    (PolicyRun(BEFORE, 1), PolicyRun(NOW, 1, kept_kv=True)),
    (PolicyRun(OTHER_FORK, 2),),
)
TRAINER = torch.tensor([[-1.0, -2.0], [-1.0, -1.0], [-0.5, -0.5], [-3.0, -3.0]])
ENGINE = torch.tensor([[-1.1, -1.7], [-2.0, -1.0], [-0.5, -1.0], [-2.0, -3.0]])
MASK = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0]]).bool()


def test_samples_of_the_steps_policy_of_an_older_one_and_of_several_are_measured_apart() -> None:
    got = measure_mismatch(TRAINER, ENGINE, MASK, ROWS, consumer=NOW, threshold=None)
    assert (got.current.num_tokens, got.stale.num_tokens, got.mixed.num_tokens) == (2, 3, 2)
    assert (got.current.mean, got.current.max) == pytest.approx((0.2, 0.3))
    assert (got.stale.mean, got.stale.max) == pytest.approx((2 / 3, 1.0))
    assert (got.mixed.mean, got.mixed.max) == pytest.approx((0.25, 0.5))
    assert got.current.kl == pytest.approx(((exp(0.1) - 1.1) + (exp(-0.3) - 0.7)) / 2, rel=1e-5)


def test_the_alarm_looks_at_the_steps_own_policy_only() -> None:
    assert measure_mismatch(TRAINER, ENGINE, MASK, ROWS, consumer=NOW, threshold=0.3).alarm is None
    raised = measure_mismatch(TRAINER, ENGINE, MASK, ROWS, consumer=NOW, threshold=0.1).alarm
    assert raised == pytest.approx(0.2)
    elsewhere = measure_mismatch(TRAINER, ENGINE, MASK, ROWS, consumer=NOW.next(), threshold=0.001)
    assert elsewhere.alarm is None
    assert elsewhere.current == Mismatch()


def test_what_the_loss_does_not_see_is_not_compared() -> None:
    spoilt = ENGINE.masked_fill(~MASK, float("nan"))
    assert measure_mismatch(TRAINER, spoilt, MASK, ROWS, consumer=NOW, threshold=0.1) == measure_mismatch(
        TRAINER, ENGINE, MASK, ROWS, consumer=NOW, threshold=0.1
    )
