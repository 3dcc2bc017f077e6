"""Stop strings, least lengths and restricted draws with a real vLLM."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from periplus.environment.completions import CompletionDecoder
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.engine import Completion, CompletionEnd, OnSwap, SampleRequest
from rollout_worker.engines.stop_strings import StopStrings
from tests.support.engines.vllm.running import RunningVllm, engine_of, request
from tests.support.engines.vllm.small_model import EOS

pytestmark = [pytest.mark.vllm, pytest.mark.processes]

V0 = Policy(0, 0)
LENGTH = 40
MEAN_NATS = 0.01
"""Mean difference of log-probabilities between vLLM in bfloat16 and float32 that is rounding. Measured: 0.0045."""


class Numbers:
    """Decodes tokens to their numbers; the end token has no text."""

    eos_token_id = EOS

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens  # end tokens and padding are left out before
        return "".join(f"{token} " for token in ids if token != EOS)


def asked(**changed: Any) -> list[SampleRequest]:
    return [replace(request(group, max_new_tokens=LENGTH), **changed) for group in range(16)]


def sampled(vllm: RunningVllm, requests: Sequence[SampleRequest], end_ids: Sequence[int] = (EOS,)) -> list[Completion]:
    engine = engine_of(vllm.backend, end_ids=end_ids)

    async def work() -> list[Completion]:
        await engine.swap(vllm.model.whole(0), V0, OnSwap.KEEP_KV)
        return await asyncio.gather(*map(engine.submit, requests))

    return vllm.run(work())


def test_a_completion_ends_with_the_token_that_completes_a_stop_string(vllm: RunningVllm) -> None:
    strings = StopStrings(CompletionDecoder(tokenizer=Numbers()), ["3 1", "22 "])
    ends = set()
    for whole, found in zip(sampled(vllm, asked()), sampled(vllm, asked(stop=strings)), strict=True):
        texts = [strings.decode(whole.token_ids[:length]) for length in range(1, len(whole.token_ids) + 1)]
        at = next((n for n, text in enumerate(texts, start=1) if "3 1" in text or "22 " in text), None)
        expected = len(whole.token_ids) if at is None else at
        assert found.token_ids == whole.token_ids[:expected]
        assert len(found.logprobs) == expected
        assert found.runs == (PolicyRun(V0, expected),)
        assert found.end is (whole.end if at is None else CompletionEnd.STOP)
        ends.add(found.end)
    assert CompletionEnd.STOP in ends
    assert len(ends) > 1


def test_there_is_no_end_token_before_the_least_length(vllm: RunningVllm) -> None:
    least = 20
    # The end token is one that this model draws early.
    drawn = Counter(token for each in sampled(vllm, asked(), end_ids=()) for token in each.token_ids[:least])
    ((eos_id, _),) = drawn.most_common(1)
    plain, found = sampled(vllm, asked(), (eos_id,)), sampled(vllm, asked(min_new_tokens=least), (eos_id,))
    assert any(len(each.token_ids) < least for each in plain)
    assert all(len(each.token_ids) >= least and eos_id not in each.token_ids[: least - 1] for each in found)
    assert any(each.end is CompletionEnd.EOS for each in found)


def test_tokens_are_drawn_from_the_likeliest_ones_with_their_logprobs_among_these(vllm: RunningVllm) -> None:
    requests, differences = asked(top_k=6, top_p=0.8, temperature=0.7), []
    for one, found in zip(requests, sampled(vllm, requests, end_ids=()), strict=True):
        logits_TV = vllm.model.logits(0, one.prompt_ids + found.token_ids)[len(one.prompt_ids) - 1 : -1] / 0.7
        for token, logprob, logits_V in zip(found.token_ids, found.logprobs, logits_TV, strict=True):
            ranked = np.argsort(-logits_V)[:6]
            probs = np.exp(logits_V[ranked] - logits_V.max())
            probs /= probs.sum()
            kept = 1 + int((probs.cumsum() < 0.8).sum())
            # Rounding to bfloat16 may move one token over the border of the nucleus.
            if token in ranked[:kept]:
                expected = np.log(probs[list(ranked).index(token)] / probs[:kept].sum())
                differences.append(abs(expected - logprob))
    num_tokens = sum(each.max_new_tokens for each in requests)
    assert len(differences) >= 0.97 * num_tokens
    assert float(np.median(differences)) < MEAN_NATS


def test_a_stop_in_the_middle_of_a_swap_loses_no_token_and_no_policy(vllm: RunningVllm) -> None:
    engine = engine_of(vllm.backend)
    strings = StopStrings(CompletionDecoder(tokenizer=Numbers()), ["22 "])

    async def work() -> list[Completion]:
        await engine.swap(vllm.model.whole(0), V0, OnSwap.KEEP_KV)
        running = [asyncio.ensure_future(engine.submit(each)) for each in asked(stop=strings, max_new_tokens=200)]
        for version in range(1, 6):
            await asyncio.sleep(0.05)
            await engine.swap(vllm.model.whole(version % 2), Policy(0, version), OnSwap.KEEP_KV)
        return await asyncio.gather(*running)

    for each in vllm.run(work()):
        assert sum(run.num_tokens for run in each.runs) == len(each.token_ids) == len(each.logprobs)
        assert 22 not in each.token_ids[:-1]
        assert each.end is (CompletionEnd.STOP if each.token_ids[-1] == 22 else CompletionEnd.LENGTH)
