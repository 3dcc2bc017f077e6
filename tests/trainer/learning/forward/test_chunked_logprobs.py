"""Log-probabilities in chunks against the whole softmax, and the memory that they save."""

import pytest
import torch

from tests.support.trainer.tensor_watch import TensorWatch
from trainer.learning.forward.chunked_logprobs import (
    entropies_in_place,
    token_logprobs,
    token_logprobs_and_entropies,
)

MANY_TOKENS, VOCABULARY, HIDDEN = 512, 4096, 8


def plain(
    hidden_MH: torch.Tensor, weight_VH: torch.Tensor, bias_V: torch.Tensor | None, targets_M: torch.Tensor, at: float
) -> torch.Tensor:
    logits_MV = torch.nn.functional.linear(hidden_MH, weight_VH, bias_V) / at
    return torch.log_softmax(logits_MV, -1).gather(1, targets_M[:, None])[:, 0]


def random_parts(
    dtype: torch.dtype, bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_MH = torch.randn(13, 6, generator=generator, dtype=dtype).requires_grad_()
    weight_VH = torch.randn(11, 6, generator=generator, dtype=dtype).requires_grad_()
    bias_V = torch.randn(11, generator=generator, dtype=dtype).requires_grad_() if bias else None
    return hidden_MH, weight_VH, bias_V, torch.randint(0, 11, (13,), generator=generator)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk_elements", [1, 33, 40, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_are_those_of_the_whole_softmax(
    chunk_elements: int, temperature: float, bias: bool
) -> None:
    hidden_MH, weight_VH, bias_V, targets_M = random_parts(torch.float32, bias)
    leaves = [leaf for leaf in (hidden_MH, weight_VH, bias_V) if leaf is not None]
    upstream_M = torch.linspace(-1.0, 2.0, 13)
    expected_M = plain(hidden_MH, weight_VH, bias_V, targets_M, temperature)
    expected = torch.autograd.grad((expected_M * upstream_M).sum(), leaves)
    got_M = token_logprobs(
        hidden_MH, weight_VH, bias_V, targets_M, temperature=temperature, chunk_elements=chunk_elements
    )
    got = torch.autograd.grad((got_M * upstream_M).sum(), leaves)
    torch.testing.assert_close(got_M, expected_M, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_operands_give_logits_and_softmax_in_float32() -> None:
    hidden_MH, weight_VH, _, targets_M = random_parts(torch.bfloat16, False)
    got_M = token_logprobs(hidden_MH, weight_VH, None, targets_M, temperature=1.0, chunk_elements=22)
    expected_M = plain(hidden_MH.float(), weight_VH.float(), None, targets_M, 1.0)
    assert got_M.dtype == torch.float32
    torch.testing.assert_close(got_M, expected_M, rtol=1e-5, atol=1e-5)
    for got, expected in zip(
        torch.autograd.grad(got_M.sum(), [hidden_MH, weight_VH]),
        torch.autograd.grad(expected_M.sum(), [hidden_MH, weight_VH]),
        strict=True,
    ):
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got, expected)


def test_logits_far_from_zero_give_finite_results() -> None:
    hidden_MH = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight_VH = torch.tensor([[1.0], [0.0], [-1.0]])
    got_M = token_logprobs(hidden_MH, weight_VH, None, torch.tensor([0, 2]), temperature=1.0)
    assert got_M.tolist() == [0.0, 0.0]
    (gradient,) = torch.autograd.grad(got_M.sum(), hidden_MH)
    assert not bool(gradient.any())


def test_no_tokens_have_no_log_probabilities_and_a_gradient_of_zeros() -> None:
    hidden_MH, weight_VH, _, _ = random_parts(torch.float32, False)
    got_M = token_logprobs(hidden_MH[:0], weight_VH, None, torch.zeros(0, dtype=torch.long), temperature=1.0)
    assert got_M.shape == (0,)
    (gradient,) = torch.autograd.grad(got_M.sum(), weight_VH)
    assert not bool(gradient.any())


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_no_tensor_of_all_logits_exists_in_either_pass(weight_dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden_MH = torch.randn(MANY_TOKENS, HIDDEN, generator=generator).to(weight_dtype).requires_grad_()
    weight_VH = torch.randn(VOCABULARY, HIDDEN, generator=generator).to(weight_dtype).requires_grad_()
    targets_M = torch.randint(0, VOCABULARY, (MANY_TOKENS,), generator=generator)
    chunk_elements = 16 * VOCABULARY
    with TensorWatch() as seen:
        logprobs_M = token_logprobs(
            hidden_MH, weight_VH, None, targets_M, temperature=0.9, chunk_elements=chunk_elements
        )
        logprobs_M.sum().backward()  # type: ignore[no-untyped-call]
    assert seen.num_elements == chunk_elements
    # The plain way makes all of them, so the watcher sees what it should.
    with TensorWatch() as plainly:
        plain(hidden_MH, weight_VH, None, targets_M, 0.9)
    assert plainly.num_elements == MANY_TOKENS * VOCABULARY


def test_little_lives_between_the_passes() -> None:
    hidden_MH = torch.randn(MANY_TOKENS, HIDDEN, requires_grad=True)
    weight_VH = torch.randn(VOCABULARY, HIDDEN, requires_grad=True)
    saved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        token_logprobs(hidden_MH, weight_VH, None, torch.zeros(MANY_TOKENS, dtype=torch.long), temperature=1.0)
    assert sum(saved) == hidden_MH.numel() + weight_VH.numel() + 2 * MANY_TOKENS


@pytest.mark.parametrize("chunk_elements", [1, 40, 1000])
@pytest.mark.parametrize("bias", [False, True])
def test_entropies_are_those_of_the_whole_softmax_and_change_nothing_else(chunk_elements: int, bias: bool) -> None:
    hidden_MH, weight_VH, bias_V, targets_M = random_parts(torch.float32, bias)
    leaves = [leaf for leaf in (hidden_MH, weight_VH, bias_V) if leaf is not None]
    alone_M = token_logprobs(hidden_MH, weight_VH, bias_V, targets_M, temperature=0.6, chunk_elements=chunk_elements)
    got_M, entropies_M = token_logprobs_and_entropies(
        hidden_MH, weight_VH, bias_V, targets_M, temperature=0.6, chunk_elements=chunk_elements
    )
    logits_MV = torch.nn.functional.linear(hidden_MH, weight_VH, bias_V) / 0.6
    expected_M = torch.distributions.Categorical(logits=logits_MV).entropy()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(entropies_M, expected_M, rtol=1e-5, atol=1e-6)
    assert not entropies_M.requires_grad
    assert torch.equal(got_M, alone_M)
    for left, right in zip(
        torch.autograd.grad(got_M.sum(), leaves), torch.autograd.grad(alone_M.sum(), leaves), strict=True
    ):
        assert torch.equal(left, right)


def test_an_entropy_with_impossible_tokens_is_that_of_the_others() -> None:
    logits_MV = torch.tensor([[0.0, 0.0, -torch.inf], [5.0, -torch.inf, -torch.inf]])
    torch.testing.assert_close(
        entropies_in_place(logits_MV, torch.logsumexp(logits_MV, 1)), torch.tensor([0.6931472, 0.0])
    )
