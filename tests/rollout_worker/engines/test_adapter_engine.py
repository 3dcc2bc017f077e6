"""Adapters that a real trainer trained and published, served by the torch engine with merged weights."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.encoder import encode
from periplus.codec.weights.layout import layout_of
from periplus.errors import WrongBase
from periplus.values.digest import state_digest
from periplus.values.low_rank import is_adapter, merged_state
from periplus.values.policy import Policy
from periplus.values.probe_prompts import probe_prompts
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.adapter_engine import AdapterEngine
from rollout_worker.engines.engine import ChangedElements, OnSwap, SampleRequest, WholeState
from rollout_worker.engines.torch_engine import TorchEngine
from rollout_worker.weights.engine_check import EngineCheck, EngineChecker
from rollout_worker.weights.host_copy import Signed
from tests.support.trainer.learning import make_job, sampled
from tests.support.trainer.samples import CONSUMER
from tests.support.trainer.sharded import small_qwen
from trainer.publishing.snapshot import HostWeights
from trainer.recipe import build_learner

RANK, ALPHA, SCALE, SEED, VOCABULARY = 3, 6.0, 2.0, 0, 21
ADAPTED = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def published() -> list[Any]:
    """Alternately: what the trainer signs of a version, and the version's state. There are four versions."""
    model = small_qwen()
    job = make_job(model={"lora": {"rank": RANK, "alpha": ALPHA}}, optimizer={"lr": 5e-2})
    learner, weights = build_learner(job, model), HostWeights(model)
    state = weights.first()
    found: list[Any] = []
    for version in range(4):
        if version:
            learner.step(sampled(model, version), consumer=CONSUMER, learning_rate=5e-2)
            state = weights.take()(state).state
        probe = tuple(weights.probe(probe_prompts(SEED, VOCABULARY)).reshape(-1).tolist())
        found += [
            Signed(policy=Policy(0, version), state_digest=state_digest(state), probe_logprobs=probe),
            state,
        ]
    return found


def states(published: list[Any]) -> list[WeightState]:
    return published[1::2]


def signed(published: list[Any]) -> list[Signed]:
    return published[::2]


def whole(state: WeightState) -> WholeState:
    return WholeState(layout=layout_of(state), state=state)


def changed(before: WeightState, after: WeightState) -> ChangedElements:
    """Return the change as a worker gets it: decoded from a delta."""
    decoder = Decoder(before, max_content_bytes=1 << 20)
    for part in encode(before, after):
        decoder.feed(part)
    return ChangedElements(staged=(decoder.staged(),))


def play(scene: Callable[[AdapterEngine, Any], Awaitable[None]], scale: float = SCALE) -> None:
    """Run a scene with an engine around a fresh model, which the scene gets too."""

    async def run() -> None:
        served = small_qwen().requires_grad_(False)
        inner = TorchEngine(model=served, end_ids=(2,), pad_id=0, num_slots=4, prompt_tokens=8, max_new_tokens=8)
        engine = AdapterEngine(inner, scale)
        try:
            async with asyncio.timeout(60):
                await scene(engine, served)
        finally:
            await engine.close()

    asyncio.run(run())


def held(model: Any) -> WeightState:
    return {
        name: Tensor("BF16", tuple(p.shape), p.detach().to(torch.bfloat16).view(torch.int16).numpy().reshape(-1).copy())
        for name, p in model.named_parameters()
    }


async def check(engine: AdapterEngine, version: Signed) -> EngineCheck:
    return await EngineChecker(engine, SEED).check(version)


def test_a_chain_of_deltas_leaves_the_merge_in_the_engine_and_is_proven_by_what_the_trainer_signed(
    published: list[Any],
) -> None:
    async def scene(engine: AdapterEngine, model: Any) -> None:
        before = states(published)[0]
        await engine.swap(whole(before), Policy(0, 0), OnSwap.KEEP_KV)
        assert (await check(engine, signed(published)[0])).is_sound
        for version in range(1, 4):
            state = states(published)[version]
            await engine.swap(changed(before, state), Policy(0, version), OnSwap.KEEP_KV)
            assert held(model) == merged_state(state, SCALE)
            found = await check(engine, signed(published)[version])
            assert found.is_sound, found.why
            assert not (await check(engine, signed(published)[version - 1])).is_sound
            before = state

    play(scene)


def test_several_versions_at_once_and_a_whole_state_in_between_come_to_the_same(published: list[Any]) -> None:
    async def scene(engine: AdapterEngine, model: Any) -> None:
        zero, one, two, three = states(published)
        await engine.swap(whole(three), Policy(0, 3), OnSwap.KEEP_KV)
        await engine.swap(whole(zero), Policy(0, 0), OnSwap.KEEP_KV)
        both = ChangedElements(staged=(*changed(zero, one).staged, *changed(one, two).staged))
        await engine.swap(both, Policy(0, 2), OnSwap.KEEP_KV)
        assert held(model) == merged_state(two, SCALE)
        assert await engine.digest() == signed(published)[2].state_digest

    play(scene)


def test_completions_are_those_of_a_model_with_merged_weights(published: list[Any]) -> None:
    greedy = SampleRequest(
        request_id="a", prompt_ids=(5, 6, 7), seed=1, group=0, sample=0, temperature=1.0, max_new_tokens=6, greedy=True
    )

    async def scene(engine: AdapterEngine, model: Any) -> None:
        await engine.swap(whole(states(published)[3]), Policy(0, 3), OnSwap.KEEP_KV)
        found = await engine.submit(greedy)
        plain = small_qwen()
        with torch.no_grad():
            for name, parameter in plain.named_parameters():
                words = merged_state(states(published)[3], SCALE)[name].data.view(np.int16)
                parameter.copy_(torch.from_numpy(words.copy()).view(torch.bfloat16).view(parameter.shape))
            expected = plain.generate(
                input_ids=torch.tensor([[5, 6, 7]]), max_new_tokens=6, do_sample=False, eos_token_id=2, pad_token_id=0
            )[0, 3:]
        assert list(found.token_ids) == expected.tolist()
        assert engine.room == engine.num_slots == 4

    play(scene)


def test_a_bit_that_flips_in_the_engine_is_found(published: list[Any]) -> None:
    async def scene(engine: AdapterEngine, model: Any) -> None:
        await engine.swap(whole(states(published)[3]), Policy(0, 3), OnSwap.KEEP_KV)
        layer = model.get_parameter(ADAPTED).detach().view(-1).view(torch.int32)
        layer[7] ^= 1 << 16
        found = await check(engine, signed(published)[3])
        assert not found.is_sound
        assert "the engine's tensors have digest" in found.why

    play(scene)


def test_adapters_that_are_merged_with_another_scale_are_found_by_the_probe(published: list[Any]) -> None:
    async def scene(engine: AdapterEngine, model: Any) -> None:
        await engine.swap(whole(states(published)[3]), Policy(0, 3), OnSwap.KEEP_KV)
        assert await engine.digest() == signed(published)[3].state_digest, "the published state itself is right"
        found = await check(engine, signed(published)[3])
        assert not found.is_sound
        assert "it computes with others" in found.why

    play(scene, scale=SCALE / 2)


def test_a_base_that_changes_under_the_adapters_is_merged_anew_and_proven(published: list[Any]) -> None:
    async def scene(engine: AdapterEngine, model: Any) -> None:
        before = states(published)[2]
        after = dict(states(published)[3])
        for name in (ADAPTED, "model.norm.weight"):
            words = after[name].data.view(np.uint16).copy()
            words[3] ^= 4
            after[name] = Tensor("BF16", after[name].shape, words)
        await engine.swap(whole(before), Policy(0, 2), OnSwap.KEEP_KV)
        await engine.swap(changed(before, after), Policy(0, 3), OnSwap.KEEP_KV)
        assert held(model) == merged_state(after, SCALE)
        # The base of a job does not change: a delta that does it to a layer without adapters is not proven.
        assert await engine.digest() != state_digest(after)

    play(scene)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop(ADAPTED.replace(".weight", ".lora_A.weight")),
        lambda state: state.pop(ADAPTED),
        lambda state: state.update(
            {ADAPTED.replace(".weight", ".lora_B.weight"): Tensor("BF16", (20, 2), np.zeros(40, np.uint16))}
        ),
    ],
)
def test_adapters_that_do_not_fit_are_refused_before_anything_is_written(
    published: list[Any], change: Callable[[dict[str, Tensor]], object]
) -> None:
    async def scene(engine: AdapterEngine, model: Any) -> None:
        state = dict(states(published)[1])
        change(state)
        before = held(model)
        with pytest.raises(WrongBase, match=r"cannot be merged|do not fit the engine"):
            await engine.swap(whole(state), Policy(0, 1), OnSwap.KEEP_KV)
        assert held(model) == before

    play(scene)


def test_a_delta_of_other_tensors_is_refused(published: list[Any]) -> None:
    async def scene(engine: AdapterEngine, model: Any) -> None:
        await engine.swap(whole(states(published)[0]), Policy(0, 0), OnSwap.KEEP_KV)
        fewer = [
            {name: tensor for name, tensor in state.items() if not is_adapter(name)} for state in states(published)[:2]
        ]
        with pytest.raises(WrongBase, match="others than those"):
            await engine.swap(changed(*fewer), Policy(0, 1), OnSwap.KEEP_KV)

    play(scene)


def test_a_change_that_rounding_hides_writes_nothing_and_still_proves_the_new_version(published: list[Any]) -> None:
    async def scene(engine: AdapterEngine, model: Any) -> None:
        before = dict(states(published)[0])  # B is zero, so that A has no effect
        name = ADAPTED.replace(".weight", ".lora_A.weight")
        words = before[name].data.view(np.uint16).copy()
        words[:] ^= 1
        after = {**before, name: Tensor("BF16", before[name].shape, words)}
        await engine.swap(whole(before), Policy(0, 0), OnSwap.KEEP_KV)
        here = held(model)
        await engine.swap(changed(before, after), Policy(0, 1), OnSwap.KEEP_KV)
        assert held(model) == here
        assert await engine.digest() == state_digest(after) != state_digest(before)

    play(scene)
