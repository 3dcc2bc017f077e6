"""vLLM serves the architectures of the list: weights in place, the trainer's digest, and transformers' tokens."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from periplus.codec.weights.layout import layout_of
from periplus.job.architectures import BY_MODEL_TYPE, Coverage
from periplus.job.job_file import JobFile
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.bundle import build_engine
from rollout_worker.engines.engine import ChangedElements, Completion, OnSwap, WholeState
from tests.support.engines.architectures import (
    CASES,
    NEW_TOKENS,
    PROMPT_TOKENS,
    by_definition,
    greedy_requests,
    random_checkpoint,
)
from tests.support.engines.models import state_of
from tests.support.engines.vllm.small_model import staged
from tests.support.tiny_job import tiny_job
from trainer.data.model import build_tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.processes]


UNLIKE_VLLM = "qwen2 with a window in one layer"
"""A case that is refused for vLLM, which supports a sliding window in all layers of Qwen2 or in none."""

SERVED = [
    case
    for case in CASES
    if BY_MODEL_TYPE[case.split()[0]].vllm is Coverage.TESTED
    # Each case takes half a minute: of one architecture those with other layers are taken, not those with other sizes.
    and (case in BY_MODEL_TYPE or "window" in case)
    and case != UNLIKE_VLLM
]


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return random_checkpoint(tmp_path / request.param, request.param, build_tokenizer())


def job_of(tmp_path: Path, checkpoint: Path) -> JobFile:
    return tiny_job(
        tmp_path,
        model={"path": str(checkpoint)},
        sampling={"max_new_tokens": NEW_TOKENS, "prompt_tokens": PROMPT_TOKENS},
        # In float32 tokens can be compared: in bfloat16 the two libraries round differently.
        engine={"name": "vllm", "max_requests": 8, "dtype": "float32", "kv_cache_gib": 0.05},
    )


def moved(state: WeightState) -> dict[str, Tensor]:
    """Return the state with a twentieth of its elements changed by several per cent."""
    rng = np.random.default_rng(0)
    found = {}
    for name, each in state.items():
        words = each.data.view(np.uint16).copy()
        changed = rng.random(words.size) < 0.05
        changed[0] = True
        words[changed] += np.uint16(9)
        found[name] = Tensor(each.dtype, each.shape, words.view(np.uint8))
    return found


async def generated(folder: Path, job: JobFile, first: WeightState, second: WeightState) -> list[Completion]:
    """Give a vLLM engine both versions, the second one as a delta, and let it complete the requests."""
    engine = await build_engine(folder, build_tokenizer(), job)
    try:
        await engine.swap(WholeState(layout=layout_of(first), state=first), Policy(0, 0), OnSwap.KEEP_KV)
        assert await engine.digest() == state_digest(first)
        await engine.submit(greedy_requests()[0])
        await engine.swap(ChangedElements(staged=(staged(first, second),)), Policy(0, 1), OnSwap.KEEP_KV)
        assert await engine.digest() == state_digest(second)
        return list(await asyncio.gather(*(engine.submit(each) for each in greedy_requests())))
    finally:
        await engine.close()


@torch.no_grad()
def expected_logprobs(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> torch.Tensor:
    """Return transformers' log-probabilities of the whole vocabulary at each token of a completion."""
    ids = torch.tensor([[*prompt, *completion]])
    return torch.log_softmax(model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1], -1)


@pytest.mark.parametrize("checkpoint", SERVED, indirect=True)
def test_vllm_takes_the_weights_and_draws_the_tokens_of_transformers(tmp_path: Path, checkpoint: Path) -> None:
    model = by_definition(checkpoint).requires_grad_(False)
    first = state_of(model)
    second = moved(first)
    found = asyncio.run(generated(checkpoint, job_of(tmp_path, checkpoint), first, second))
    for name, parameter in model.named_parameters():
        bits = torch.from_numpy(second[name].data.copy()).view(torch.bfloat16)
        parameter.copy_(bits.view(parameter.shape).float())
    for each, completion in zip(greedy_requests(), found, strict=True):
        logprobs_TV = expected_logprobs(model, each.prompt_ids, completion.token_ids)
        assert logprobs_TV.argmax(-1).tolist() == list(completion.token_ids)
        np.testing.assert_allclose(completion.logprobs, logprobs_TV.max(-1).values, rtol=1e-4, atol=1e-4)
