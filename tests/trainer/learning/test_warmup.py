import dataclasses
from typing import Any

import pytest
import torch

from trainer.data.dataset import Example
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.micro_batches import MicroBatchLimits
from trainer.learning.warmup import WarmupSettings, warm_up

EXAMPLES = [Example(prompt_ids=(3, token), completion_ids=(token, 2)) for token in range(5, 15)]
SETTINGS = WarmupSettings(
    max_steps=60,
    batch_rows=8,
    peak_learning_rate=2e-2,
    ramp_steps=2,
    max_grad_norm=1.0,
    weight_decay=0.0,
    target_loss=0.5,
    loss_window=3,
    micro_batch=MicroBatchLimits(rows=100, tokens=1000),
    seed=0,
)


def test_it_stops_once_the_mean_of_the_last_losses_is_under_the_target(model: Any) -> None:
    losses = [progress.loss for progress in warm_up(PolicyScorer(model), EXAMPLES, SETTINGS)]
    assert len(losses) < SETTINGS.max_steps
    assert sum(losses[-3:]) / 3 < 0.5 <= sum(losses[-4:-1]) / 3


def test_it_stops_at_its_last_step_when_the_target_is_out_of_reach(model: Any) -> None:
    settings = dataclasses.replace(SETTINGS, max_steps=4, target_loss=0.0)
    assert [progress.step for progress in warm_up(PolicyScorer(model), EXAMPLES, settings)] == [1, 2, 3, 4]


def test_the_same_seed_takes_the_same_steps_and_another_seed_others(model: Any) -> None:
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def losses(seed: int) -> list[float]:
        model.load_state_dict(start)
        settings = dataclasses.replace(SETTINGS, max_steps=5, target_loss=0.0, seed=seed)
        return [progress.loss for progress in warm_up(PolicyScorer(model), EXAMPLES, settings)]

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_it_draws_nothing_from_the_global_random_state(model: Any) -> None:
    before = torch.random.get_rng_state()
    next(warm_up(PolicyScorer(model), EXAMPLES, SETTINGS))
    assert torch.equal(before, torch.random.get_rng_state())


def test_no_examples_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="examples"):
        next(warm_up(PolicyScorer(model), [], SETTINGS))
