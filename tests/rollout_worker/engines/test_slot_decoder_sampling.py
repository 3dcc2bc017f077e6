"""The torch engine's slots with requests that stop at texts, have a least length or draw from a part of the tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from periplus.environment.completions import CompletionDecoder
from rollout_worker.engines.engine import Completion, CompletionEnd, SampleRequest
from rollout_worker.engines.stop_strings import StopStrings
from tests.support.engines.models import EOS, MOST_NEW, PAD, decoder, qwen3, request

NUM_REQUESTS = 40


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Any:
    return qwen3()


class Numbers:
    """Decodes tokens to their numbers; the end token has no text."""

    eos_token_id = EOS

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens  # end tokens and padding are left out before
        return "".join(f"{token} " for token in ids if token != EOS)


def asked(**changed: Any) -> list[SampleRequest]:
    return [replace(request(group, max_new_tokens=MOST_NEW), **changed) for group in range(NUM_REQUESTS)]


def run(model: Any, requests: Sequence[SampleRequest], end_ids: Sequence[int] = (EOS,)) -> list[Completion]:
    slots, found = decoder(model, end_ids=end_ids), {}
    for one in requests:
        slots.submit(one)
    while not slots.is_idle:
        for ended in slots.step(may_begin=True):
            assert isinstance(ended.result, Completion), ended.result
            found[ended.request.request_id] = ended.result
    return [found[one.request_id] for one in requests]


def test_a_completion_ends_with_the_token_that_completes_a_stop_string(model: Any) -> None:
    # A text that ends a token with 3 and begins the next one with 1: two tokens complete it.
    strings = StopStrings(CompletionDecoder(tokenizer=Numbers()), ["3 1", "22 "])
    ends = set()
    for whole, found in zip(run(model, asked()), run(model, asked(stop=strings)), strict=True):
        texts = [strings.decode(whole.token_ids[:length]) for length in range(1, len(whole.token_ids) + 1)]
        at = next((n for n, text in enumerate(texts, start=1) if "3 1" in text or "22 " in text), None)
        expected = len(whole.token_ids) if at is None else at
        assert (found.token_ids, found.logprobs) == (whole.token_ids[:expected], whole.logprobs[:expected])
        assert found.end is (whole.end if at is None else CompletionEnd.STOP)
        assert sum(each.num_tokens for each in found.runs) == expected
        ends.add(found.end)
    assert ends == {CompletionEnd.STOP, CompletionEnd.EOS, CompletionEnd.LENGTH}


def test_each_of_several_end_tokens_ends_a_completion_and_none_comes_before_the_least_length(model: Any) -> None:
    ends = (EOS, 5, 7)
    whole = run(model, asked(), end_ids=())
    found = run(model, asked(), ends)
    for every, one in zip(whole, found, strict=True):
        at = next((n for n, token in enumerate(every.token_ids, start=1) if token in ends), None)
        assert one.token_ids == every.token_ids[:at]
        assert one.end is (CompletionEnd.LENGTH if at is None else CompletionEnd.EOS)
    assert {each.token_ids[-1] for each in found if each.end is CompletionEnd.EOS} == set(ends)
    assert all(not set(each.token_ids[:6]) & set(ends) for each in run(model, asked(min_new_tokens=6), ends))


def test_there_is_no_end_token_before_the_least_length_and_the_rest_is_drawn_as_without_it(model: Any) -> None:
    least = 5
    plain, found = run(model, asked()), run(model, asked(min_new_tokens=least))
    assert any(len(each.token_ids) < least for each in plain)
    assert any(each.end is CompletionEnd.EOS for each in found)
    for one, each in zip(asked(), found, strict=True):
        assert len(each.token_ids) >= least
        for place, logprob in enumerate(each.logprobs):
            logits_V = model(torch.tensor([one.prompt_ids + each.token_ids[:place]])).logits[0, -1].float()
            if place < least:
                logits_V[EOS] = -torch.inf
            assert abs(torch.log_softmax(logits_V, 0)[each.token_ids[place]].item() - logprob) < 1e-4


def test_greedy_with_a_least_length_equals_that_of_transformers(model: Any) -> None:
    requests = asked(greedy=True, min_new_tokens=9)
    for one, found in zip(requests, run(model, requests), strict=True):
        expected = model.generate(
            torch.tensor([one.prompt_ids]),
            attention_mask=torch.ones(1, len(one.prompt_ids)),
            do_sample=False,
            min_new_tokens=9,
            max_new_tokens=MOST_NEW,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )
        assert found.token_ids == tuple(expected[0, len(one.prompt_ids) :].tolist())


def test_tokens_are_drawn_from_the_likeliest_ones_with_their_logprobs_among_these(model: Any) -> None:
    requests = asked(top_k=6, top_p=0.8, temperature=0.7)
    for one, found in zip(requests, run(model, requests), strict=True):
        for place, (token, logprob) in enumerate(zip(found.token_ids, found.logprobs, strict=True)):
            logits_V = model(torch.tensor([one.prompt_ids + found.token_ids[:place]])).logits[0, -1].float() / 0.7
            probs_6, ids_6 = torch.softmax(logits_V.topk(6).values, 0), logits_V.topk(6).indices.tolist()
            # The fewest likeliest ones that have 0.8 together.
            kept = 1 + int((probs_6.cumsum(0) < 0.8).sum())
            assert token in ids_6[:kept]
            expected = (probs_6[ids_6.index(token)] / probs_6[:kept].sum()).log().item()
            assert abs(expected - logprob) < 1e-4


def test_training_samples_are_bitwise_the_same_beside_those_of_an_evaluation(model: Any) -> None:
    evaluation = [
        replace(one, request_id=f"eval {one.request_id}", group=one.group + 1000)
        for one in asked(
            top_k=3, top_p=0.5, min_new_tokens=4, stop=StopStrings(CompletionDecoder(tokenizer=Numbers()), ["3 1"])
        )
    ]
    mixed = [each for pair in zip(evaluation, asked(), strict=True) for each in pair]
    found = run(model, mixed)
    assert found[1::2] == run(model, asked())
    assert found[::2] == run(model, evaluation[::-1])[::-1]
