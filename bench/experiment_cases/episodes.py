"""Episodes of several turns with a real engine, whose small model has few symbols, so that it ends turns often."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from periplus.codec.weights.layout import layout_of
from periplus.environment.datasets.listed import ListedProblems
from periplus.environment.environment import Item
from periplus.environment.prompts import PromptEncoder
from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose
from periplus.values.weight_state import Tensor
from rollout_worker.engines.engine import OnSwap, SampleRequest, WholeState
from rollout_worker.engines.torch_engine import TorchEngine
from rollout_worker.environments.building import EpisodeSource
from rollout_worker.episodes.queue import QueuedLease
from rollout_worker.episodes.turns import PlayedEpisode, TurnDriver
from rollout_worker.weights.serving import Serving

V0 = Policy(0, 0)

EOS = 2
"""Id of the end token."""

BUDGET = 160
"""Most tokens of an episode. Chosen by hand: a turn of this model has 8 in the mean."""


class Digits:
    """A tokenizer whose ids 3 to 7 are the digits 0 to 4."""

    chat_template, eos_token = None, "$"

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """Return the ids of a text of digits."""
        return {"input_ids": [3 + int(letter) for letter in text]}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the digits of ids."""
        return "".join(str(number - 3) for number in ids if number >= 3)


def small_model() -> Any:
    """Return a random Qwen3 of eight symbols, whose weights are bfloat16 numbers in float32."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=8,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=EOS,
    )
    return Qwen3ForCausalLM(config).to(torch.bfloat16).float().eval().requires_grad_(False)


def play_episodes(
    source: EpisodeSource,
    num_episodes: int,
    *,
    max_turns: int = 4,
    num_slots: int = 64,
    run: Callable[[], Any] | None = None,
) -> tuple[PlayedEpisode, ...]:
    """Return that many episodes of different groups, played at the same time. `run` is awaited beside them."""
    return asyncio.run(_play(source, num_episodes, max_turns, num_slots, run))


async def _play(
    source: EpisodeSource, num_episodes: int, max_turns: int, num_slots: int, run: Callable[[], Any] | None
) -> tuple[PlayedEpisode, ...]:
    model = small_model()
    state = {
        name: Tensor("BF16", tuple(p.shape), p.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16).reshape(-1))
        for name, p in model.named_parameters()
    }
    engine = TorchEngine(
        model=model, end_ids=(EOS,), pad_id=0, num_slots=num_slots, prompt_tokens=8 + BUDGET, max_new_tokens=BUDGET
    )
    serving = Serving()
    serving.sound(V0)
    items = tuple(Item(index=index, prompt="01", answer="") for index in range(num_episodes))
    driver = TurnDriver(
        engine,
        serving,
        source,
        ListedProblems(items=items),
        PromptEncoder(tokenizer=Digits()),
        asyncio.Lock(),
        max_turns=max_turns,
    )
    beside = None if run is None else asyncio.create_task(run())
    try:
        await engine.swap(WholeState(layout=layout_of(state), state=state), V0, OnSwap.KEEP_KV)
        return tuple(await asyncio.gather(*(_episode(driver, serving, index) for index in range(num_episodes))))
    finally:
        if beside is not None:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
        await engine.close()


async def _episode(driver: TurnDriver, serving: Serving, index: int) -> PlayedEpisode:
    lease = QueuedLease(
        lease_id=index, group=index, sample=0, item=index, start_at=V0, consume_by_version=9, purpose=Purpose.TRAIN
    )
    request = SampleRequest(
        request_id=f"0.{index}",
        prompt_ids=(3, 4),
        seed=5,
        group=index,
        sample=0,
        temperature=1.0,
        max_new_tokens=BUDGET,
        greedy=False,
    )
    with serving.request(request.request_id, 0) as served:
        return await driver.play(lease, request, served)
