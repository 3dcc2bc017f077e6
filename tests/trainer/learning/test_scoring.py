from typing import Any

import pytest
import torch

from tests.support.trainer.dense_scoring import dense_states
from tests.support.trainer.samples import sample
from trainer.learning.batch import collate
from trainer.learning.critic import Critic
from trainer.learning.forward import scorer as scorer_module
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.scoring import completion_logprobs, completion_scores, state_values

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


def test_entropies_of_the_packed_and_of_the_padded_path_are_those_of_the_whole_softmax(model: Any) -> None:
    batch, found = collate(SAMPLES), []
    for implementation in ("packed", "padded"):
        scorer = PolicyScorer(model)
        with pytest.MonkeyPatch.context() as patched:
            if implementation == "padded":
                patched.setattr(scorer_module, "takes_packed", lambda model: False)
            with torch.no_grad():
                logprobs_BT, entropies_BT = completion_scores(scorer, batch, 0.7)
        torch.testing.assert_close(logprobs_BT, completion_logprobs(PolicyScorer(model), batch, 0.7).detach())
        found.append(entropies_BT)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    for row, each in enumerate(batch.samples):
        ids = torch.tensor([[*each.prompt_ids.tolist(), *each.completion_ids.tolist()]])
        with torch.no_grad():
            logits_SV = model(input_ids=ids).logits[0, len(each.prompt_ids) - 1 : -1] / 0.7
        expected_S = torch.distributions.Categorical(logits=logits_SV).entropy()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(found[0][row, : len(expected_S)], expected_S, rtol=1e-4, atol=1e-5)
        assert not found[0][row, len(expected_S) :].any()
