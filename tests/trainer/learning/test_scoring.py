from typing import Any

import pytest
import torch

from tests.support.trainer.samples import sample
from trainer.learning.batch import collate
from trainer.learning.critic import Critic
from trainer.learning.scoring import completion_logprobs, last_states

SAMPLES = (sample(0, 0, (3, 4, 5), (6, 7)), sample(1, 0, (8,), (9, 10, 11, 2)))


def test_padding_does_not_change_what_a_completion_is_worth(model: Any) -> None:
    together = completion_logprobs(model, collate(SAMPLES, 0), 0.7)
    for row, one in enumerate(SAMPLES):
        ids = torch.tensor([[*one.prompt_ids.tolist(), *one.completion_ids.tolist()]])
        logits_TV = model(ids).logits[0, len(one.prompt_ids) - 1 : -1] / 0.7
        targets_T1 = torch.tensor(one.completion_ids).long()[:, None]
        expected_T = torch.log_softmax(logits_TV, -1).gather(1, targets_T1)[:, 0]
        torch.testing.assert_close(together[row, : len(expected_T)], expected_T, atol=1e-5, rtol=1e-5)


def test_a_state_is_the_one_before_its_token_and_the_last_follows_the_completion(model: Any) -> None:
    together = last_states(model.base_model, collate(SAMPLES, 0))
    assert together.shape == (2, 5, 16)
    for row, one in enumerate(SAMPLES):
        ids = torch.tensor([[*one.prompt_ids.tolist(), *one.completion_ids.tolist()]])
        expected_UH = model.base_model(ids).last_hidden_state[0, len(one.prompt_ids) - 1 :]
        torch.testing.assert_close(together[row, : len(expected_UH)], expected_UH, atol=1e-5, rtol=1e-5)


def test_a_new_critic_expects_nothing_and_shares_no_weight_with_the_actor(model: Any) -> None:
    critic = Critic(model)
    assert torch.equal(critic(collate(SAMPLES, 0)), torch.zeros(2, 5))
    mine = {parameter.data_ptr() for parameter in model.parameters()}
    assert not mine & {parameter.data_ptr() for parameter in critic.parameters()}
    assert {name for name, _ in critic.named_parameters()} >= {"head.weight", "head.bias"}


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_temperature_of_sampling_is_that_of_scoring(model: Any, temperature: float) -> None:
    batch = collate(SAMPLES, 0)
    cold, plain = completion_logprobs(model, batch, temperature), completion_logprobs(model, batch, 1.0)
    assert not torch.allclose(cold, plain)
