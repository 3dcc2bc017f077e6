from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.losses.grpo import GrpoSettings, GrpoStats, grpo_loss

SETTINGS = GrpoSettings(clip_low=0.2, clip_high=0.3, importance_cap=2.0)


def loss_of(
    ratio: float,
    advantage: float,
    *,
    proximal_over_behaviour: float | None = None,
    settings: GrpoSettings = SETTINGS,
) -> tuple[float, float, GrpoStats]:
    """The loss of one token whose probability is `ratio` times the proximal policy's."""
    behaviour = log(0.2)
    proximal = behaviour if proximal_over_behaviour is None else behaviour + log(proximal_over_behaviour)
    logprobs_BT = torch.tensor([[proximal + log(ratio)]], requires_grad=True)
    loss, stats = grpo_loss(
        logprobs_BT, torch.tensor([[behaviour]]), torch.tensor([advantage]), torch.tensor([[True]]), settings,
        num_tokens=1,
        proximal_logprobs_BT=None if proximal_over_behaviour is None else torch.tensor([[proximal]]),
    )  # fmt: skip
    loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs_BT.grad is not None
    return float(loss.detach()), float(logprobs_BT.grad), stats


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.6, 0.0),  # raised enough already: clipped at 1.3
        (0.5, 2.0, -1.0, -1.0),  # went the wrong way: never clipped
        (0.5, -1.0, 0.8, 0.0),  # lowered enough already: clipped at 0.8
        (1.5, -1.0, 1.5, 1.5),  # went the wrong way: never clipped
    ],
)
def test_the_coupled_loss_is_the_clipped_objective_worked_out_by_hand(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    got_loss, got_gradient, _ = loss_of(ratio, advantage)
    assert got_loss == pytest.approx(loss, rel=1e-5)
    assert got_gradient == pytest.approx(gradient, rel=1e-5)


@pytest.mark.parametrize(("staleness_ratio", "weight"), [(0.5, 0.5), (1.0, 1.0), (1.9, 1.9), (7.0, 2.0)])
def test_decoupled_weighs_a_stale_token_by_its_truncated_importance(staleness_ratio: float, weight: float) -> None:
    loss, gradient, _ = loss_of(1.0, 3.0, proximal_over_behaviour=staleness_ratio)
    assert loss == pytest.approx(-3.0 * weight, rel=1e-5)
    assert gradient == pytest.approx(-3.0 * weight, rel=1e-5)


def test_decoupled_clips_around_the_proximal_policy_and_not_the_behaviour_policy() -> None:
    far_from_behaviour = loss_of(1.0, 1.0, proximal_over_behaviour=1.9)
    far_from_proximal = loss_of(1.5, 1.0, proximal_over_behaviour=1.9)
    assert far_from_behaviour[2].clipped == 0
    assert far_from_proximal[2].clipped == 1
    assert far_from_proximal[1] == 0


def test_without_a_cap_the_importance_weight_is_whole() -> None:
    settings = GrpoSettings(clip_low=0.2, clip_high=0.2, importance_cap=None)
    assert loss_of(1.0, 1.0, proximal_over_behaviour=7.0, settings=settings)[0] == pytest.approx(-7.0, rel=1e-5)


def test_statistics_compare_the_current_with_the_behaviour_policy() -> None:
    _, _, stats = loss_of(1.5, 1.0)
    assert stats.ratio == pytest.approx(1.5, rel=1e-5)
    assert stats.approx_kl == pytest.approx(0.5 - log(1.5), rel=1e-4)
    assert stats.clipped == 1


def test_padding_may_hold_anything_and_passes_no_gradient() -> None:
    nan = float("nan")
    logprobs_BT = torch.tensor([[-1.0, nan, 900.0]], requires_grad=True)
    behaviour_BT = torch.tensor([[-1.0, -900.0, nan]])
    loss, stats = grpo_loss(
        logprobs_BT, behaviour_BT, torch.tensor([1.0]), torch.tensor([[True, False, False]]), SETTINGS, num_tokens=1,
        proximal_logprobs_BT=logprobs_BT.detach(),
    )  # fmt: skip
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(-1.0)
    assert logprobs_BT.grad is not None
    assert logprobs_BT.grad.tolist() == [[-1.0, 0.0, 0.0]]
    assert stats.ratio == 1.0


@given(st.integers(0, 2**31), st.integers(1, 5))
def test_micro_batches_sum_to_the_loss_of_the_whole(seed: int, cut: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    current, behaviour = (-torch.rand(6, 4, generator=generator) for _ in range(2))
    mask_BT, advantages_B = torch.rand(6, 4, generator=generator) < 0.7, torch.randn(6, generator=generator)
    mask_BT[0, 0] = True
    total = int(mask_BT.sum())
    whole, stats = grpo_loss(current, behaviour, advantages_B, mask_BT, SETTINGS, num_tokens=total)
    parts = [
        grpo_loss(current[rows], behaviour[rows], advantages_B[rows], mask_BT[rows], SETTINGS, num_tokens=total)
        for rows in (slice(0, cut), slice(cut, 6))
    ]
    torch.testing.assert_close(whole, parts[0][0] + parts[1][0])
    assert parts[0][1].plus(parts[1][1]).approx_kl == pytest.approx(stats.approx_kl, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("decoupled", [False, True])
def test_the_gradient_agrees_with_finite_differences(decoupled: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    current, behaviour, proximal = (-torch.rand(3, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    advantages_B = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
    mask_BT = torch.ones(3, 4, dtype=torch.bool)

    def loss(logprobs_BT: torch.Tensor) -> torch.Tensor:
        return grpo_loss(
            logprobs_BT, behaviour, advantages_B, mask_BT, SETTINGS, num_tokens=12,
            proximal_logprobs_BT=proximal if decoupled else None,
        )[0]  # fmt: skip

    assert torch.autograd.gradcheck(loss, current.requires_grad_())


def test_on_policy_the_expected_gradient_is_the_policy_gradient() -> None:
    """Over all tokens of a small distribution, weighted by how often each is sampled."""
    logits_V = torch.tensor([0.3, -0.2, 0.9], requires_grad=True)
    reward_V = torch.tensor([1.0, 0.0, 0.5])
    logprobs_V = torch.log_softmax(logits_V, 0)
    behaviour_V = logprobs_V.detach()
    loss = sum(
        (
            exp(behaviour_V[v])
            * grpo_loss(
                logprobs_V[v].view(1, 1), behaviour_V[v].view(1, 1), reward_V[v].view(1),
                torch.ones(1, 1, dtype=torch.bool), SETTINGS, num_tokens=1,
            )[0]
            for v in range(3)
        ),
        start=torch.zeros(()),
    )  # fmt: skip
    (got,) = torch.autograd.grad(loss, logits_V, retain_graph=True)
    (expected,) = torch.autograd.grad(-(logprobs_V.exp() * reward_V).sum(), logits_V)
    torch.testing.assert_close(got, expected)


def test_an_empty_step_is_refused() -> None:
    empty = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="token count"):
        grpo_loss(empty, empty, torch.zeros(1), empty.bool(), SETTINGS, num_tokens=0)
