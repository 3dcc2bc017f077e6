from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.batch import Sample, collate


def sample(group: int, number: int, prompt: Sequence[int], completion: Sequence[int], reward: float = 0.0) -> Sample:
    return Sample(
        group=group, sample=number, prompt_ids=tuple(prompt), completion_ids=tuple(completion),
        behaviour_logprobs=tuple(-float(token) for token in completion), mask=(1,) * len(completion), reward=reward,
    )  # fmt: skip


def test_prompts_are_padded_left_and_completions_right() -> None:
    batch = collate([sample(0, 0, [5], [6, 7, 8], 0.5), sample(0, 1, [5, 6], [9], 1.0)], pad_id=0)
    assert batch.input_ids_BS.tolist() == [[0, 5, 6, 7, 8], [5, 6, 9, 0, 0]]
    assert batch.real_BS.tolist() == [[False, True, True, True, True], [True, True, True, False, False]]
    assert batch.mask_BT.tolist() == [[True, True, True], [True, False, False]]
    assert batch.behaviour_logprobs_BT.tolist() == [[-6.0, -7.0, -8.0], [-9.0, 0.0, 0.0]]
    assert batch.rewards == (0.5, 1.0)
    assert batch.num_tokens == 4


@given(st.randoms())
def test_the_order_of_arrival_does_not_change_the_batch(random: Random) -> None:
    samples = [sample(g, s, [g + 1], range(1, s + 2), g + s) for g in range(4) for s in range(3)]
    arrived = samples.copy()
    random.shuffle(arrived)
    straight, shuffled = collate(samples, 0), collate(arrived, 0)
    assert straight.groups == shuffled.groups == tuple(sorted(straight.groups))
    assert straight.rewards == shuffled.rewards
    assert torch.equal(straight.input_ids_BS, shuffled.input_ids_BS)


def test_a_slice_keeps_widths_and_takes_the_rows() -> None:
    batch = collate([sample(g, 0, [1], [2] * (g + 1), g) for g in range(5)], pad_id=0)
    part = batch.rows(1, 3)
    assert part.num_rows == 2
    assert part.rewards == (1, 2)
    assert part.input_ids_BS.shape == (2, batch.input_ids_BS.shape[1])


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [sample(0, 0, [], [1])],
        [sample(0, 0, [1], [])],
        [replace(sample(0, 0, [1], [1, 2]), behaviour_logprobs=(0.0,))],
        [replace(sample(0, 0, [1], [1, 2]), mask=(1,))],
    ],
)
def test_samples_that_cannot_be_trained_on_are_refused(samples: list[Sample]) -> None:
    with pytest.raises(ValueError):
        collate(samples, pad_id=0)


def test_the_loss_sees_what_the_mask_shows_and_the_model_sees_all() -> None:
    batch = collate([replace(sample(0, 0, [5], [6, 7, 8]), mask=(1, 0, 1)), sample(0, 1, [5], [9])], pad_id=0)
    assert batch.mask_BT.tolist() == [[True, False, True], [True, False, False]]
    assert batch.real_BS.tolist() == [[True, True, True, True], [True, True, False, False]]
    assert batch.num_tokens == 3
