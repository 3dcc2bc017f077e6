"""Figures of single samples, worked out by hand."""

import pytest
import torch

from tests.support.trainer.samples import sample
from trainer.learning.batch import collate
from trainer.learning.sample_figures import SampleFigures, figures_of_samples


def test_means_are_over_the_tokens_that_the_loss_sees() -> None:
    batch = collate(
        [
            sample(1, 0, [3], [5, 6, 7], logprobs=[-1.0, 0.0, -2.0], mask=[1, 0, 1], reward=0.5),
            sample(0, 2, [3], [5], logprobs=[-1.0], reward=-1.0),
        ]
    )
    nan = float("nan")
    # Rows are sorted by group: the first has one token and padding, the second a token of context.
    advantages_BT = torch.tensor([[2.0, nan, nan], [1.0, nan, -3.0]])
    at_start_BT = torch.tensor([[-1.5, nan, nan], [-1.0, nan, -1.0]])
    first, second = figures_of_samples(batch, advantages_BT, at_start_BT)
    assert first == pytest.approx(SampleFigures(0, 2, -1.0, 2.0, 0.5, 0.5))
    assert second == pytest.approx(SampleFigures(1, 0, 0.5, -1.0, 0.5, 1.0))


def test_a_sample_without_a_token_for_the_loss_has_zeros() -> None:
    batch = collate([sample(0, 0, [3], [5], mask=[0]), sample(0, 1, [3], [5])])
    found = figures_of_samples(batch, torch.ones(2, 1), torch.ones(2, 1))
    assert found[0] == SampleFigures(0, 0, 0.0, 0.0, 0.0, 0.0)
    assert found[1].advantage == 1.0
