"""Packed attention against the dense oracle, for each architecture that it claims."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.trainer.dense_scoring import dense_logprobs, dense_states
from tests.support.trainer.samples import sample
from tests.support.trainer.small_models import PACKED, PADDED, random_model
from tests.support.trainer.tensor_watch import TensorWatch
from trainer.learning.batch import Batch, Sample, collate
from trainer.learning.critic import Critic
from trainer.learning.forward.attention import takes_packed, use_packed_attention
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.scoring import completion_logprobs, state_values

each_packed = pytest.mark.parametrize("name", PACKED)
each_model = pytest.mark.parametrize("name", [*PACKED, *PADDED])


def random_batch(seed: int, groups: tuple[int, ...] = (1, 3, 5), longest_prompt: int = 14, longest: int = 6) -> Batch:
    """Return groups with so many rows, which have the prompt in common."""
    rng = np.random.default_rng(seed)
    rows: list[Sample] = []
    for group, num_rows in enumerate(groups):
        prompt = rng.integers(1, 20, rng.integers(1, longest_prompt + 1)).tolist()
        completions = [rng.integers(1, 20, rng.integers(1, longest + 1)).tolist() for _ in range(num_rows)]
        rows += [sample(group, i, prompt, completion) for i, completion in enumerate(completions)]
    return collate(rows)


def loss_of(logprobs_BT: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return a loss in which each token has a weight of its own."""
    weights_BT = torch.linspace(-1.0, 1.0, batch.mask_BT.numel()).view(batch.mask_BT.shape)
    return (logprobs_BT.masked_fill(~batch.mask_BT, 0.0) * weights_BT).sum()


def gradients_of(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return [parameter.grad.clone() for parameter in model.parameters()]


@each_model
@pytest.mark.parametrize("seed", [0, 1])
def test_losses_and_gradients_are_those_of_dense_attention(name: str, seed: int) -> None:
    batch = random_batch(seed)
    model = random_model((PACKED | PADDED)[name])
    if name in PADDED:
        # The oracle's own mask would replace a sliding window, and hides from a model how far apart tokens are. So the
        # rows are scored one by one, without a mask.
        rows = [dense_logprobs_alone(model, each) for each in batch.samples]
        dense_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    else:
        dense_BT = dense_logprobs(model, batch.samples, 0.7)
    expected = loss_of(dense_BT, batch)
    expected_gradients = gradients_of(model, expected)
    assert use_packed_attention(model) == takes_packed(model) == (name in PACKED)
    got = loss_of(completion_logprobs(PolicyScorer(model), batch, 0.7), batch)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients_of(model, got), expected_gradients, rtol=2e-4, atol=2e-5)


def dense_logprobs_alone(model: Any, one: Sample) -> torch.Tensor:
    ids = torch.tensor([[*one.prompt_ids.tolist(), *one.completion_ids.tolist()]])
    logits_SV = model(ids, use_cache=False).logits[0] / 0.7
    logprobs_SV = torch.log_softmax(logits_SV[len(one.prompt_ids) - 1 : -1], -1)
    return logprobs_SV.gather(1, torch.tensor(one.completion_ids).long()[:, None])[:, 0]


@each_packed
def test_a_critic_values_the_states_of_dense_attention(name: str) -> None:
    batch, model = random_batch(2), random_model(PACKED[name])
    expected_BUH = dense_states(model.base_model, batch.samples)
    use_packed_attention(model)
    critic = Critic(model)
    torch.nn.init.normal_(critic.head.weight)
    values_BU = state_values(critic, batch)
    for row, width in enumerate(batch.lengths_B.tolist()):
        expected = critic.head(expected_BUH[row, : width + 1])[:, 0]
        torch.testing.assert_close(values_BU[row, : width + 1], expected, rtol=1e-4, atol=1e-5)


@each_packed
def test_a_row_does_not_see_the_rows_beside_it(name: str) -> None:
    batch, model = random_batch(3), random_model(PACKED[name])
    use_packed_attention(model)
    scorer = PolicyScorer(model)
    with torch.no_grad():
        together_BT = completion_logprobs(scorer, batch, 1.0)
        for row in range(batch.num_rows):
            alone_BT = completion_logprobs(scorer, batch.take([row]), 1.0)
            torch.testing.assert_close(alone_BT[0], together_BT[row], rtol=1e-5, atol=1e-5)


@each_packed
def test_a_model_that_takes_packed_sequences_answers_other_calls_as_before(name: str) -> None:
    model = random_model(PACKED[name])
    ids = torch.randint(1, 20, (3, 7), generator=torch.Generator().manual_seed(0))
    real = torch.tensor([[0] * 3 + [1] * 4, [1] * 7, [0] * 1 + [1] * 6])
    expected = model(ids, attention_mask=real).logits, model(ids).logits
    use_packed_attention(model)
    for got, before in zip((model(ids, attention_mask=real).logits, model(ids).logits), expected, strict=True):
        torch.testing.assert_close(got[real.bool()], before[real.bool()], rtol=1e-5, atol=1e-6)


@each_packed
def test_the_prompt_of_a_group_is_computed_once(name: str) -> None:
    rng = np.random.default_rng(4)
    prompt = rng.integers(1, 20, 50).tolist()
    batch = collate([sample(0, row, prompt, rng.integers(1, 20, 2).tolist()) for row in range(8)])
    model = random_model(PACKED[name])
    use_packed_attention(model)
    seen: list[int] = []
    layers = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    for layer in layers:
        layer.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0].shape[1]))
    completion_logprobs(PolicyScorer(model), batch, 1.0)
    assert seen == [50 + 8 * 2] * len(layers)


def test_no_mask_of_squared_size_is_made() -> None:
    """One long sequence beside many short ones: 1500 tokens, whose square is 2.2 million."""
    model = random_model(PACKED["qwen3 with grouped queries"])
    model.config.max_position_embeddings = 2048
    rng = np.random.default_rng(0)
    rows = [sample(0, 0, rng.integers(1, 20, 700).tolist(), rng.integers(1, 20, 20).tolist())]
    rows += [sample(row, 0, rng.integers(1, 20, 20).tolist(), rng.integers(1, 20, 6).tolist()) for row in range(1, 31)]
    batch = collate(rows)
    use_packed_attention(model)
    with TensorWatch() as seen:
        completion_logprobs(PolicyScorer(model), batch, 1.0).sum().backward()  # type: ignore[no-untyped-call]
    num_tokens = sum(size.num_tokens for size in batch.sizes)
    # Queries of 4 heads of 8, and the MLP, are the widest per token; the padded width of all rows would be 22,320.
    assert 32 * num_tokens <= seen.num_elements <= 48 * num_tokens
    assert seen.num_elements < 720 * 720
