"""Tests of the translation from a job's keys to the learner's settings."""

from typing import Any

import pytest
import torch

from tests.support.trainer.learning import make_job, tiny_model
from trainer import recipe
from trainer.learning.forward.memory import activation_bytes
from trainer.learning.losses.aggregate import Aggregation
from trainer.learning.losses.importance import Correction, Importance, Level
from trainer.learning.losses.kl import KlEstimator
from trainer.learning.losses.surrogate import Clip
from trainer.learning.micro_batches import MicroBatchLimits
from trainer.recipe import build_learner, learner_settings, model_widths, pass_plan


def test_each_option_of_the_loss_arrives_where_it_works() -> None:
    job = make_job(
        algorithm={
            "name": "grpo",
            "clip_low": 0.1,
            "clip_high": 0.3,
            "dual_clip": 3.0,
            "loss_aggregation": "constant",
            "importance_correction": "masked",
            "importance_level": "sequence_geometric",
            "importance_low": 0.9,
            "importance_high": 1.1,
            "kl_coefficient": 0.2,
            "kl_estimator": "k2",
            "advantage_normalisation": "none",
        },
        sampling={"temperature": 0.7, "max_new_tokens": 9},
        seed=7,
        train={"micro_batch_samples": 3, "micro_batch_tokens": 90, "minibatches": 2, "epochs": 3},
    )
    got = learner_settings(job, tiny_model())
    loss = got.update.loss
    assert loss.clip == Clip(low=0.1, high=0.3, dual=3.0)
    assert loss.importance == Importance(
        correction=Correction.MASKED, level=Level.SEQUENCE_GEOMETRIC, cap=2.0, low=0.9, high=1.1
    )
    assert (loss.aggregation, loss.constant_tokens) == (Aggregation.CONSTANT, 9)
    assert (loss.kl_coefficient, loss.kl_estimator, got.reward_kl_coefficient) == (0.2, KlEstimator.K2, 0.0)
    assert (got.update.temperature, got.update.micro_batch) == (0.7, MicroBatchLimits(rows=3, tokens=90))
    assert (got.minibatches, got.epochs, got.seed, got.mismatch_alarm) == (2, 3, 7, 0.02)
    assert not got.advantage.normalise


def test_the_threshold_of_m2po_arrives_and_no_other_algorithm_has_one() -> None:
    settings = [learner_settings(make_job(algorithm={"name": name}), tiny_model()) for name in ("m2po", "rloo")]
    assert [each.update.loss.m2_threshold for each in settings] == [0.04, None]
    assert settings[0].update.loss.clip == Clip(low=None, high=None)


def test_options_of_advantages_and_of_the_critic_arrive_too() -> None:
    ppo = make_job(
        algorithm={
            "name": "ppo",
            "gamma": 0.9,
            "gae_lambda": 0.8,
            "value_clip": 0.4,
            "critic_lr": 5e-3,
            "kl_coefficient": 0.1,
            "bootstrap_truncated": True,
        },
        optimizer={"lr": 1e-2},
    )
    got = learner_settings(ppo, tiny_model())
    assert (got.advantage.gamma, got.advantage.gae_lambda, got.advantage.bootstrap_truncated) == (0.9, 0.8, True)
    assert got.update.value_clip == 0.4
    assert got.critic_rate == pytest.approx(0.5)
    assert (got.reward_kl_coefficient, got.reward_kl_estimator) == (0.1, KlEstimator.K1)
    assert got.update.loss.kl_coefficient == 0.0
    dapo = learner_settings(
        make_job(algorithm={"name": "dapo", "overlong_cache_tokens": 3, "overlong_filter": True}), tiny_model()
    ).advantage
    assert (dapo.overlong_cache_tokens, dapo.overlong_filter, dapo.max_tokens) == (3, True, 4)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"name": "grpo"}, {"optimizer"}),
        ({"name": "grpo", "kl_coefficient": 0.1}, {"optimizer", "reference"}),
        ({"name": "ppo"}, {"optimizer", "critic", "critic_optimizer"}),
        ({"name": "ppo", "kl_coefficient": 0.1}, {"optimizer", "critic", "critic_optimizer", "reference"}),
    ],
)
def test_a_learner_holds_what_its_algorithm_needs_and_no_more(
    model: Any, options: dict[str, Any], parts: set[str]
) -> None:
    assert set(build_learner(make_job(algorithm=options), model).state_dict()) == parts


def test_the_reference_stays_where_the_actor_was(model: Any) -> None:
    learner = build_learner(make_job(algorithm={"name": "grpo", "kl_coefficient": 0.1}), model)
    before = {name: value.clone() for name, value in learner.state_dict()["reference"].items()}
    for parameter in model.parameters():
        parameter.data.add_(1.0)
    after = learner.state_dict()["reference"]
    assert all(bool((before[name] == after[name]).all()) for name in before)


def test_passes_on_a_gpu_follow_what_is_free_after_the_learner(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job, cuda = make_job(train={"dtype": "float32", "activation_checkpointing": "off"}), torch.device("cuda", 0)
    monkeypatch.setattr(recipe, "has_bfloat16_units", lambda _: True)
    taken = 20 * sum(parameter.numel() for parameter in model.parameters())
    a_token = activation_bytes(model_widths(model.config), dtype_bytes=4, recompute=False)
    for free_bytes, tokens in ((taken + 15_000 * a_token, 10_000), (taken + 7500 * a_token, 5000), (taken, 0)):
        monkeypatch.setattr(recipe, "free_device_bytes", lambda _, free_bytes=free_bytes: free_bytes)
        longest = job.sampling.prompt_tokens + job.sampling.max_new_tokens
        assert pass_plan(job, model, cuda).tokens == pytest.approx(max(longest, tokens), abs=1)
    auto = job.model_copy(update={"train": job.train.model_copy(update={"activation_checkpointing": "auto"})})
    assert pass_plan(auto, model, cuda).recompute
    monkeypatch.setattr(recipe, "free_device_bytes", lambda _: pytest.fail("a job that says all is not measured for"))
    told = job.train.model_copy(update={"micro_batch_tokens": 77})
    assert pass_plan(job.model_copy(update={"train": told}), model, cuda).tokens == 77
