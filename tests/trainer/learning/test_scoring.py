from typing import Any

import pytest
import torch

from tests.support.trainer.dense_scoring import dense_states
from tests.support.trainer.samples import sample
from trainer.learning.batch import collate
from trainer.learning.critic import Critic
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.scoring import completion_logprobs, state_values

SAMPLES = (sample(0, 0, (3, 4, 5), (6, 7)), sample(1, 0, (8,), (9, 10, 11, 2)))


def test_padding_does_not_change_what_a_completion_is_worth(model: Any) -> None:
    together = completion_logprobs(PolicyScorer(model), collate(SAMPLES), 0.7)
    assert together[0, 2:].tolist() == [0.0, 0.0]
    for row, one in enumerate(SAMPLES):
        ids = torch.tensor([[*one.prompt_ids.tolist(), *one.completion_ids.tolist()]])
        logits_TV = model(ids).logits[0, len(one.prompt_ids) - 1 : -1] / 0.7
        targets_T1 = torch.tensor(one.completion_ids).long()[:, None]
        expected_T = torch.log_softmax(logits_TV, -1).gather(1, targets_T1)[:, 0]
        torch.testing.assert_close(together[row, : len(expected_T)], expected_T, atol=1e-5, rtol=1e-5)


def test_a_value_is_that_of_the_state_before_its_token_and_the_last_follows_the_completion(model: Any) -> None:
    critic = Critic(model)
    torch.nn.init.normal_(critic.head.weight)
    values_BU = state_values(critic, collate(SAMPLES))
    assert values_BU.shape == (2, 5)
    expected_BU = critic.head(dense_states(model.base_model, SAMPLES))[..., 0]
    for row, one in enumerate(SAMPLES):
        width = len(one.completion_ids) + 1
        torch.testing.assert_close(values_BU[row, :width], expected_BU[row, :width], atol=1e-5, rtol=1e-5)


def test_a_new_critic_expects_nothing_and_shares_no_weight_with_the_actor(model: Any) -> None:
    critic = Critic(model)
    assert torch.equal(state_values(critic, collate(SAMPLES)), torch.zeros(2, 5))
    mine = {parameter.data_ptr() for parameter in model.parameters()}
    assert not mine & {parameter.data_ptr() for parameter in critic.parameters()}
    assert {name for name, _ in critic.named_parameters()} >= {"head.weight", "head.bias"}


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_temperature_of_sampling_is_that_of_scoring(model: Any, temperature: float) -> None:
    batch, scorer = collate(SAMPLES), PolicyScorer(model)
    cold, plain = completion_logprobs(scorer, batch, temperature), completion_logprobs(scorer, batch, 1.0)
    assert not torch.allclose(cold, plain)


def test_rows_that_do_not_exist_have_a_result_and_a_gradient_of_zeros(model: Any) -> None:
    """A rank without rows of its own runs a pass all the same."""
    scorer, critic = PolicyScorer(model), Critic(model)
    nothing = collate(SAMPLES).take([])
    logprobs_BT, values_BU = completion_logprobs(scorer, nothing, 1.0), state_values(critic, nothing)
    assert (logprobs_BT.shape, values_BU.shape) == ((0, 4), (0, 5))
    (logprobs_BT.sum() + values_BU.sum()).backward()  # type: ignore[no-untyped-call]
    for parameter in [*scorer.parameters(), *critic.parameters()]:
        assert parameter.grad is not None
        assert not bool(parameter.grad.any())
