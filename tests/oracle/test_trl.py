"""Our losses against TRL's: `GRPOTrainer._compute_loss`, called unbound with a stand-in that returns chosen
log-probabilities. No model and no download; the method is private, so the extra pins TRL to 1.16."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from tests.support.trainer.losses import COUPLED, counts_of, loss_settings, random_step
from trainer.learning.losses.aggregate import Aggregation
from trainer.learning.losses.importance import Correction, Importance, Level
from trainer.learning.losses.kl import KlEstimator
from trainer.learning.losses.objective import LossSettings, policy_loss
from trainer.learning.losses.registry import ALGORITHMS
from trainer.learning.losses.surrogate import Clip

LONGEST = 11
SEEDS = range(5)


def stand_in(logprobs_BT: torch.Tensor, options: dict[str, Any]) -> SimpleNamespace:
    """Return an object with as much of a trainer as TRL's method reads."""
    zero = torch.zeros_like(logprobs_BT)
    defaults: dict[str, Any] = {
        "loss_type": "grpo",
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "epsilon_high": 0.3,
        "beta": 0.0,
        "use_vllm": False,
        "vllm_importance_sampling_correction": True,
        "delta": None,
    }
    values = defaults | options
    return SimpleNamespace(
        **{name: value for name, value in values.items() if name != "delta"},
        args=SimpleNamespace(delta=values["delta"], use_bias_correction_kl=False, steps_per_generation=1),
        _get_per_token_logps_and_entropies=lambda *args, **named: (logprobs_BT, zero, None),
        accelerator=SimpleNamespace(
            num_processes=1,
            gather=lambda tensor: tensor,
            reduce=lambda tensor, reduction: tensor,
            gather_for_metrics=lambda tensor: tensor,
        ),
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LONGEST,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )


def theirs(step: dict[str, torch.Tensor], options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """TRL's loss and its gradient."""
    logprobs_BT = step["logprobs_BT"].clone().requires_grad_()
    mask_BT = step["mask_BT"].to(logprobs_BT.dtype)
    ids_BT = torch.zeros_like(step["mask_BT"], dtype=torch.long)
    inputs = {
        "prompt_ids": ids_BT[:, :1],
        "prompt_mask": torch.ones_like(ids_BT[:, :1]),
        "completion_ids": ids_BT,
        "completion_mask": mask_BT,
        "advantages": step["advantages_BT"][:, 0],
        "num_items_in_batch": mask_BT.sum(),
        "old_per_token_logps": step["proximal_BT"],
        "ref_per_token_logps": step["reference_BT"],
    }
    if options.get("use_vllm"):
        inputs["importance_sampling_ratio"] = step["weight_BT"]
    loss = GRPOTrainer._compute_loss(stand_in(logprobs_BT, options), None, inputs)
    (gradient,) = torch.autograd.grad(loss, logprobs_BT)
    return loss.detach(), gradient


def ours(name: str, step: dict[str, torch.Tensor], settings: LossSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of ours; coupled means that TRL's old policy is the behaviour policy."""
    logprobs_BT = step["logprobs_BT"].clone().requires_grad_()
    coupled = settings.importance.correction is Correction.NONE
    loss, _ = policy_loss(
        ALGORITHMS[name].token_loss,
        logprobs_BT,
        proximal_BT=step["proximal_BT"],
        reference_BT=step["reference_BT"],
        behaviour_BT=step["proximal_BT"] if coupled else step["behaviour_BT"],
        advantages_BT=step["advantages_BT"],
        mask_BT=step["mask_BT"],
        counts=counts_of(step["mask_BT"]),
        settings=settings,
    )
    (gradient,) = torch.autograd.grad(loss, logprobs_BT)
    return loss.detach(), gradient


COUPLED_CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "grpo, mean of sequences": ("grpo", {"aggregation": Aggregation.SEQUENCE_MEAN}, {"loss_type": "grpo"}),
    "dapo, mean of tokens": (
        "dapo",
        {"clip": Clip(low=0.2, high=0.28)},
        {"loss_type": "dapo", "epsilon_high": 0.28},
    ),
    "dr_grpo, constant": (
        "dr_grpo",
        {"aggregation": Aggregation.CONSTANT, "constant_tokens": LONGEST},
        {"loss_type": "dr_grpo"},
    ),
    "gspo, ratio of a sequence": (
        "gspo",
        {"aggregation": Aggregation.SEQUENCE_MEAN, "clip": Clip(low=0.03, high=0.04)},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 0.03, "epsilon_high": 0.04},
    ),
    # TRL's epsilon_high is the bound itself for CISPO, ours is above 1.
    "cispo, no lower bound": (
        "cispo",
        {"clip": Clip(low=None, high=0.5)},
        {"loss_type": "cispo", "epsilon_high": 1.5},
    ),
    "two-sided clip is the dual clip": (
        "grpo",
        {"clip": Clip(low=0.2, high=0.3, dual=1.5)},
        {"loss_type": "dapo", "delta": 1.5},
    ),
    "k3 in the loss": (
        "grpo",
        {"kl_coefficient": 0.2, "kl_estimator": KlEstimator.K3},
        {"loss_type": "dapo", "beta": 0.2},
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", COUPLED_CASES)
def test_coupled_losses_and_gradients_are_trls(case: str, seed: int) -> None:
    name, changes, options = COUPLED_CASES[case]
    step = random_step(seed, dtype=torch.float64)
    settings = loss_settings(importance=COUPLED, **changes)
    torch.testing.assert_close(ours(name, step, settings), theirs(step, options), rtol=1e-9, atol=1e-12)


def test_the_cases_meet_tokens_that_are_clipped() -> None:
    step = random_step(0, rows=50, dtype=torch.float64)
    ratio_BT = torch.exp(step["logprobs_BT"] - step["proximal_BT"])[step["mask_BT"]]
    assert float((ratio_BT > 1.5).double().mean()) > 0.05
    assert float((ratio_BT < 0.8).double().mean()) > 0.05


DECOUPLED_CASES = {
    "token_truncate": Importance(correction=Correction.TRUNCATED, level=Level.TOKEN, cap=1.3),
    "token_mask": Importance(correction=Correction.MASKED, level=Level.TOKEN, low=0.7, high=1.3),
    "sequence_truncate": Importance(correction=Correction.TRUNCATED, level=Level.SEQUENCE, cap=1.3),
    "sequence_mask": Importance(correction=Correction.MASKED, level=Level.SEQUENCE, low=0.7, high=1.3),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", DECOUPLED_CASES)
def test_weights_between_engine_and_trainer_are_applied_where_trl_applies_them(mode: str, seed: int) -> None:
    """The weights are written here as `_generate_and_score_completions` has them (vllm_importance_sampling_mode): that
    method samples too, so it cannot be called alone. The penalty is outside of them."""
    importance, step = DECOUPLED_CASES[mode], random_step(seed, dtype=torch.float64)
    difference_BT = (step["proximal_BT"] - step["behaviour_BT"]) * step["mask_BT"]
    if mode.startswith("sequence"):
        difference_BT = difference_BT.sum(dim=-1, keepdim=True)
    ratio_BT = torch.exp(difference_BT)
    if mode.endswith("truncate"):
        step["weight_BT"] = torch.clamp(ratio_BT, max=importance.cap)
    else:
        step["weight_BT"] = ratio_BT.masked_fill((ratio_BT < importance.low) | (ratio_BT > importance.high), 0.0)
    settings = loss_settings(importance=importance, kl_coefficient=0.1)
    options = {"loss_type": "dapo", "use_vllm": True, "beta": 0.1}
    torch.testing.assert_close(ours("grpo", step, settings), theirs(step, options), rtol=1e-9, atol=1e-12)
