from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from rollout_worker.engines.engine import CompletionEnd, SampleRequest
from rollout_worker.engines.torch_engine import TorchEngine

EOS, PAD, VOCAB, WIDTH = 2, 0, 50, 9


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """The promise is for one thread: several split the work by shape."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=8,
        initializer_range=0.2,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def engine(model: Any) -> TorchEngine:
    return TorchEngine(model=model, eos_id=EOS, pad_id=PAD, batch_rows=16, prompt_tokens=WIDTH)


def request(
    group: int,
    sample: int = 0,
    *,
    length: int | None = None,
    temperature: float = 1.0,
    max_new_tokens: int = 6,
    greedy: bool = False,
) -> SampleRequest:
    """A request whose prompt is a function of its group."""
    length = length or 1 + group % WIDTH
    prompt_ids = tuple(3 + (group * 7 + place * 5) % (VOCAB - 3) for place in range(length))
    return SampleRequest(
        prompt_ids=prompt_ids,
        group=group,
        sample=sample,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        greedy=greedy,
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), unique=True, min_size=1, max_size=40),
    st.sampled_from([4, 6]),
)
def test_a_completion_is_bitwise_the_same_in_any_batch_and_row(
    engine: TorchEngine, keys: list[tuple[int, int]], max_new_tokens: int
) -> None:
    requests = [request(group, sample, max_new_tokens=4 if group % 2 else max_new_tokens) for group, sample in keys]
    together = engine.generate(requests, seed=5, version=1)
    backwards = engine.generate(requests[::-1], seed=5, version=1)[::-1]
    alone = engine.generate(requests[-1:], seed=5, version=1)
    assert together == backwards
    assert together[-1:] == alone


def test_the_model_of_these_tests_is_not_saturated(engine: TorchEngine) -> None:
    """Log-probabilities that are all 0 would agree whatever the kernels do: the test above would be empty."""
    completions = engine.generate([request(group) for group in range(40)], seed=0, version=0)
    logprobs = [logprob for completion in completions for logprob in completion.logprobs]
    assert len(set(logprobs)) > 0.95 * len(logprobs)
    assert max(logprobs) < 0


def test_every_row_of_a_full_batch_computes_the_same_bits(engine: TorchEngine) -> None:
    same = engine.generate([request(3, length=4, greedy=True)] * engine.batch_rows, seed=0, version=0)
    assert len(set(same)) == 1


def test_more_requests_than_rows_are_answered_in_order(engine: TorchEngine) -> None:
    requests = [request(group) for group in range(50)]
    completions = engine.generate(requests, seed=1, version=0)
    assert completions == [engine.generate([r], seed=1, version=0)[0] for r in requests]


def test_greedy_agrees_with_transformers_own_generate(engine: TorchEngine, model: Any) -> None:
    for group in range(8):
        asked = request(group, greedy=True)
        ours = engine.generate([asked], seed=0, version=0)[0]
        theirs = model.generate(
            torch.tensor([asked.prompt_ids]),
            attention_mask=torch.ones(1, len(asked.prompt_ids)),
            do_sample=False,
            max_new_tokens=asked.max_new_tokens,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )
        assert ours.token_ids == tuple(theirs[0, len(asked.prompt_ids) :].tolist())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_tempered_model(engine: TorchEngine, model: Any, temperature: float) -> None:
    for completion, asked in [
        (engine.generate([asked], seed=3, version=0)[0], asked)
        for asked in [request(group, temperature=temperature) for group in range(6)]
    ]:
        ids = torch.tensor([asked.prompt_ids + completion.token_ids])
        with torch.no_grad():
            logits_TV = model(ids).logits[0, len(asked.prompt_ids) - 1 : -1] / temperature
        expected_T = torch.log_softmax(logits_TV, -1).gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected_T, atol=1e-4, rtol=1e-4)


def test_a_completion_ends_with_its_end_token_or_at_its_length(engine: TorchEngine) -> None:
    completions = engine.generate([request(g, s) for g in range(40) for s in range(8)], seed=2, version=0)
    assert {c.stop_reason for c in completions} == {CompletionEnd.EOS, CompletionEnd.LENGTH}
    for completion in completions:
        assert len(completion.token_ids) == len(completion.logprobs)
        assert EOS not in completion.token_ids[:-1]
        if completion.stop_reason is CompletionEnd.EOS:
            assert completion.token_ids[-1] == EOS
        else:
            assert len(completion.token_ids) == 6
            assert completion.token_ids[-1] != EOS


def test_seed_version_and_sample_each_give_other_tokens(engine: TorchEngine) -> None:
    asked = [request(4, sample, temperature=2.0) for sample in range(12)]
    runs = [engine.generate(asked, seed=s, version=v) for s, v in [(0, 0), (0, 1), (1, 0)]]
    assert all(a != b for a, b in pairwise([*runs, runs[0]]))
    assert len({c.token_ids for c in runs[0]}) > 6


def test_live_tensors_name_tied_weights_once_and_writing_them_changes_the_output(
    engine: TorchEngine, model: Any
) -> None:
    tensors = engine.tensors()
    assert "model.embed_tokens.weight" in tensors
    assert "lm_head.weight" not in tensors
    before = engine.generate([request(1)], seed=0, version=0)
    saved = {name: tensor.clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.mul_(1.5)
    after = engine.generate([request(1)], seed=0, version=0)
    for name, tensor in tensors.items():
        tensor.copy_(saved[name])
    assert after != before
    assert engine.generate([request(1)], seed=0, version=0) == before


def test_the_probe_sees_what_generation_computes(engine: TorchEngine) -> None:
    """Log-probabilities of sampled tokens, by the cached decoder and by one plain pass."""
    asked = [request(group, length=5, max_new_tokens=4) for group in range(12)]
    for one, completion in zip(asked, engine.generate(asked, seed=1, version=0), strict=True):
        ids = np.array([one.prompt_ids + completion.token_ids], dtype=np.int64)
        found = engine.logprobs(np.repeat(ids, 4, axis=0))
        assert found.shape == (4, ids.shape[1] - 1)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found[0, 4:], completion.logprobs, atol=1e-4)


def test_the_vocabulary_is_the_models(engine: TorchEngine) -> None:
    assert engine.vocab_size == VOCAB


@pytest.mark.parametrize(
    "bad", [request(0, length=WIDTH + 1), request(0, temperature=0.0), request(0, max_new_tokens=0)]
)
def test_a_request_that_cannot_be_served_is_refused(engine: TorchEngine, bad: SampleRequest) -> None:
    with pytest.raises(ValueError):
        engine.generate([bad], seed=0, version=0)


def test_too_few_rows_for_stable_kernels_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="batch_rows"):
        TorchEngine(model=model, eos_id=EOS, pad_id=PAD, batch_rows=3, prompt_tokens=WIDTH)
