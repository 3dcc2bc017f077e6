"""Every architecture of the list through the functions of a job, held against transformers' own numbers.

A checkpoint that transformers saved is checked, loaded, trained for a step, published, generated with by the torch
engine, and exported. The oracle is transformers alone, with one sequence at a time and `eager` attention.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.encoder import encode
from periplus.codec.weights.layout import layout_of
from periplus.job.architectures import ARCHITECTURES, BY_MODEL_TYPE, Coverage
from periplus.job.job_file import JobFile
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.probe_prompts import probe_prompts
from periplus.values.trajectory import PolicyRun
from periplus.values.weight_state import WeightState
from rollout_worker.engines.bundle import build_engine
from rollout_worker.engines.engine import ChangedElements, Completion, Engine, OnSwap, WholeState
from tests.support.engines.architectures import (
    CASES,
    NEW_TOKENS,
    PROMPT_TOKENS,
    by_definition,
    greedy_requests,
    random_checkpoint,
)
from tests.support.tiny_job import tiny_job
from tests.support.trainer.samples import CONSUMER, sample
from trainer.checkpointing.export import final_model, model_files
from trainer.data.model import build_tokenizer, load_model
from trainer.learning.batch import Sample, collate
from trainer.learning.forward.attention import takes_packed
from trainer.learning.learner import Learner
from trainer.learning.scoring import completion_logprobs
from trainer.preflight import checked_inputs
from trainer.publishing.publish import bf16_state
from trainer.publishing.reference_logprobs import relative_rounding
from trainer.publishing.trained_weights import weights_of
from trainer.recipe import build_learner

pytestmark = pytest.mark.slow


GROUPS, GROUP_SIZE = 4, 4


def type_of(case: str) -> str:
    return case.split()[0]


WITH_ADAPTERS = [case for case in CASES if BY_MODEL_TYPE[type_of(case)].adapters is Coverage.TESTED]


@dataclass(frozen=True)
class Trained:
    """What one step has left: the model, and the published states before and after it."""

    model: Any
    first: WeightState
    second: WeightState


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def job_of(tmp_path: Path, checkpoint: Path, *, lora: bool = False) -> JobFile:
    model: dict[str, Any] = {"path": str(checkpoint)}
    if lora:
        layers = BY_MODEL_TYPE[type_of(checkpoint.name)].adapter_layers
        model["lora"] = {"rank": 4, "alpha": 8.0, **({"target_modules": layers} if layers else {})}
    return tiny_job(
        tmp_path,
        model=model,
        sampling={"max_new_tokens": NEW_TOKENS, "prompt_tokens": PROMPT_TOKENS},
        algorithm={"group_size": GROUP_SIZE},
        # So large that one step changes most bfloat16 values.
        optimizer={"lr": 1e-2},
        # A CPU with instructions for bfloat16 would compute larger models in it.
        train={"groups_per_step": GROUPS, "dtype": "float32"},
        engine={"max_requests": 5},
    )


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return random_checkpoint(tmp_path / request.param, request.param, build_tokenizer())


@torch.no_grad()
def true_logprobs(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> list[float]:
    """Return the log-probability of each token of a completion, by a model that sees nothing else."""
    ids = torch.tensor([[*prompt, *completion]])
    logprobs_SV = torch.log_softmax(model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1], -1)
    found: list[float] = logprobs_SV.gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()
    return found


def batch_of(model: Any) -> list[Sample]:
    """Return samples of several lengths, with the log-probabilities that the oracle gives them."""
    rng = np.random.default_rng(0)
    samples = []
    for group in range(GROUPS):
        prompt = rng.integers(5, 60, rng.integers(1, PROMPT_TOKENS + 1)).tolist()
        for number in range(GROUP_SIZE):
            completion = rng.integers(5, 60, rng.integers(1, NEW_TOKENS + 1)).tolist()
            runs = (PolicyRun(CONSUMER, len(completion)),)
            logprobs = true_logprobs(model, prompt, completion)
            each = sample(group, number, prompt, completion, reward=number % 2, logprobs=logprobs, policies=runs)
            samples.append(each)
    return samples


def trained(job: JobFile, checkpoint: Path) -> Trained:
    """Train one step, and check that the trainer's log-probabilities are those of the oracle."""
    checked_inputs(job, checkpoint)
    model, _ = load_model(checkpoint)
    samples = batch_of(by_definition(checkpoint))
    learner: Learner = build_learner(job, model)
    expected = collate(samples)
    with torch.no_grad():
        got_BT = completion_logprobs(learner._actor.model, expected, 1.0)
    for row, each in enumerate(expected.samples):
        width = len(each.completion_ids)
        np.testing.assert_allclose(got_BT[row, :width], each.behaviour_logprobs, rtol=1e-4, atol=2e-5)
    prompts = probe_prompts(job.seed, model.config.get_text_config().vocab_size)
    assert 0.001 < relative_rounding(model, prompts) < 0.1
    weights = weights_of(model)
    first = weights.first()
    report = learner.step(samples, consumer=CONSUMER, learning_rate=job.optimizer.lr)
    assert report is not None
    assert report.mean_ratio == pytest.approx(1.0, abs=1e-4)
    assert report.mismatch.current.mean == pytest.approx(0.0, abs=1e-5)
    assert report.grad_norm > 0
    return Trained(model=model, first=first, second=weights.take()(first).state)


def change(before: WeightState, after: WeightState) -> ChangedElements:
    """Return the change as a worker gets it: decoded from a delta."""
    decoder = Decoder(before, max_content_bytes=sum(each.data.nbytes for each in after.values()))
    for part in encode(before, after):
        decoder.feed(part)
    return ChangedElements(staged=(decoder.staged(),))


async def generated(engine: Engine, states: Trained) -> list[Completion]:
    """Give the engine both versions, the second one as a delta, and let it complete the requests."""
    try:
        whole = WholeState(layout=layout_of(states.first), state=states.first)
        await engine.swap(whole, Policy(0, 0), OnSwap.KEEP_KV)
        await engine.submit(greedy_requests()[0])
        await engine.swap(change(states.first, states.second), Policy(0, 1), OnSwap.KEEP_KV)
        assert await engine.digest() == state_digest(states.second)
        return list(await asyncio.gather(*(engine.submit(each) for each in greedy_requests())))
    finally:
        await engine.close()


@torch.no_grad()
def generate(model: Any, prompt: Sequence[int], eos_id: int) -> list[int]:
    """Complete a prompt greedily with transformers."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=eos_id,
        pad_token_id=0,
    )
    completion: list[int] = found[0, len(prompt) :].tolist()
    return completion


def check_job_of(tmp_path: Path, checkpoint: Path, job: JobFile) -> Trained:
    """Take a checkpoint from its checks to its export, and compare everything with transformers."""
    states = trained(job, checkpoint)
    tokenizer = build_tokenizer()
    # What a worker gets: the configuration, and weights over the network.
    engine = asyncio.run(build_engine(checkpoint, tokenizer, job))
    found = asyncio.run(generated(engine, states))
    final = tmp_path / "final"
    digest = final_model(states.model, model_files(checkpoint, states.model), final, state_digest(states.second))
    exported = by_definition(final)
    assert state_digest(bf16_state(exported)) == digest
    for each, completion in zip(greedy_requests(), found, strict=True):
        expected = generate(exported, each.prompt_ids, tokenizer.eos_token_id)
        assert list(completion.token_ids) == expected
        logprobs = true_logprobs(exported, each.prompt_ids, expected)
        np.testing.assert_allclose(completion.logprobs, logprobs, rtol=1e-4, atol=2e-5)
    return states


def test_the_list_says_which_models_are_tested() -> None:
    assert {type_of(case) for case in CASES} == BY_MODEL_TYPE.keys()
    for listed in ARCHITECTURES:
        configs = [make() for case, make in CASES.items() if type_of(case) == listed.model_type]
        assert {config.model_type for config in configs} == {listed.model_type}
        has_windows = {bool(_windows(config)) for config in configs}
        assert (True in has_windows) == listed.windows
        ties = {bool(config.tie_word_embeddings) for config in configs}
        assert ties == {"both": {True, False}, "tied": {True}, "untied": {False}}[listed.ties]


def _windows(config: Any) -> bool:
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        return "sliding_attention" in layer_types
    return getattr(config, "sliding_window", None) is not None


@pytest.mark.parametrize("checkpoint", CASES, indirect=True)
def test_a_job_computes_what_transformers_does(tmp_path: Path, checkpoint: Path) -> None:
    listed = BY_MODEL_TYPE[type_of(checkpoint.name)]
    states = check_job_of(tmp_path, checkpoint, job_of(tmp_path, checkpoint))
    assert type(states.model).__name__ == listed.class_name
    assert takes_packed(states.model) == (listed.is_packed and not _windows(states.model.config))
    # The step has changed every tensor: none is left out of training or of publication.
    assert states.first.keys() == states.second.keys() == dict(states.model.named_parameters()).keys()
    assert all(not np.array_equal(states.first[name].data, states.second[name].data) for name in states.first)


@pytest.mark.parametrize("checkpoint", WITH_ADAPTERS, indirect=True)
def test_a_job_with_adapters_computes_what_transformers_does(tmp_path: Path, checkpoint: Path) -> None:
    check_job_of(tmp_path, checkpoint, job_of(tmp_path, checkpoint, lora=True))
