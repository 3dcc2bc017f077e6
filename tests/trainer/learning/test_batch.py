from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose, SamplingParams, StopReason, Trajectory
from tests.support.trainer.samples import sample
from trainer.learning.batch import Sample, collate, sample_of


def test_completions_are_padded_on_the_right() -> None:
    batch = collate(
        [
            sample(0, 0, [5], [6, 7, 8], logprobs=[-6, -7, -8], reward=0.5),
            sample(0, 1, [5, 6], [9], logprobs=[-9], reward=1.0, stop_reason=StopReason.LENGTH),
        ],
    )
    assert batch.mask_BT.tolist() == [[True, True, True], [True, False, False]]
    assert batch.behaviour_logprobs_BT.tolist() == [[-6.0, -7.0, -8.0], [-9.0, 0.0, 0.0]]
    assert batch.rewards == (0.5, 1.0)
    assert batch.lengths_B.tolist() == [3, 1]
    assert batch.sizes == ((0, 1, 3), (1, 2, 1)), "the prompts differ"
    assert batch.truncated_B.tolist() == [False, True]
    assert batch.num_tokens == 4


@given(st.randoms())
def test_the_order_of_arrival_does_not_change_the_batch(random: Random) -> None:
    samples = [sample(g, s, [g + 1], range(1, s + 2), reward=g + s) for g in range(4) for s in range(3)]
    arrived = samples.copy()
    random.shuffle(arrived)
    straight, shuffled = collate(samples), collate(arrived)
    assert straight.groups == shuffled.groups == tuple(sorted(straight.groups))
    assert straight.rewards == shuffled.rewards
    assert torch.equal(straight.packed().ids_1N, shuffled.packed().ids_1N)


def test_rows_that_are_taken_keep_their_widths_and_their_order() -> None:
    batch = collate([sample(g, 0, [1], [2] * (g + 1), reward=g) for g in range(5)])
    part = batch.take([1, 3])
    assert part.num_rows == 2
    assert part.rewards == (1, 3)
    assert part.mask_BT.shape == (2, batch.num_columns)
    assert part.num_tokens == 6


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [sample(0, 0, [], [1])],
        [sample(0, 0, [1], [])],
        [sample(0, 0, [1], [1, 2], logprobs=[0.0])],
        [sample(0, 0, [1], [1, 2], mask=[1])],
        [sample(0, 0, [1], [1]), sample(0, 0, [1], [2])],
    ],
)
def test_samples_that_cannot_be_trained_on_are_refused(samples: list[Sample]) -> None:
    with pytest.raises(ValueError):
        collate(samples)


def test_the_loss_sees_what_the_mask_shows_and_the_model_sees_all() -> None:
    batch = collate([sample(0, 0, [5], [6, 7, 8], mask=[1, 0, 1]), sample(0, 1, [5], [9])])
    assert batch.mask_BT.tolist() == [[True, False, True], [True, False, False]]
    assert batch.packed().ids_1N.tolist() == [[5, 6, 7, 8, 9]], "the prompt is there once"
    assert batch.num_tokens == 3


def test_a_trajectory_gives_all_that_is_trained_on_and_takes_the_reward_assigned_to_it() -> None:
    trajectory = Trajectory(
        lease_id=1,
        group=2,
        sample=3,
        item=4,
        purpose=Purpose.TRAIN,
        prompt_ids=np.array([5, 6], np.int32),
        completion_ids=np.array([7, 8, 9], np.int32),
        logprobs=np.array([-0.5, 0.0, -0.25], np.float32),
        mask=np.array([True, False, True]),
        policies=(PolicyRun(Policy(0, 1), 2), PolicyRun(Policy(0, 2), 1)),
        reward=0.75,
        stop_reason=StopReason.LENGTH,
        worker_id="w",
        generation_s=0.1,
        sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=0),
        metadata="",
    )
    got = sample_of(trajectory, 0.5)
    assert (got.group, got.sample, got.reward, got.stop_reason) == (2, 3, 0.5, StopReason.LENGTH)
    assert got.policies == trajectory.policies
    batch = collate([got])
    assert batch.packed().ids_1N.tolist() == [[5, 6, 7, 8, 9]]
    assert batch.behaviour_logprobs_BT.tolist() == [[-0.5, 0.0, -0.25]]
    assert batch.mask_BT.tolist() == [[True, False, True]]


def test_completions_that_stopped_or_ended_are_not_truncated() -> None:
    ends = (StopReason.EOS, StopReason.STOP, StopReason.LENGTH)
    samples = [sample(0, number, [5], [6], stop_reason=end) for number, end in enumerate(ends)]
    assert collate(samples).truncated_B.tolist() == [False, False, True]
