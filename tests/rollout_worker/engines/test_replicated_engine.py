"""Several torch engines as one. Each samples the same tokens for the same request, so what has moved can be seen."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import pytest

from periplus.errors import CorruptFrame, WrongBase
from periplus.values.policy import Policy
from rollout_worker.engines.engine import CompletionEnd, EngineDied, OnSwap
from rollout_worker.engines.replicated_engine import ReplicatedEngine
from rollout_worker.engines.torch_engine import TorchEngine
from tests.support.engines.models import EOS, PAD, WIDTH, llama, qwen3, request, whole

NEVER, LONG = -1, 300


def play(
    scene: Callable[[ReplicatedEngine, dict[str, TorchEngine]], Awaitable[None]],
    number: int = 3,
    *,
    end_ids: Sequence[int] = (EOS,),
    max_new_tokens: int = 12,
) -> None:
    """Run a scene with so many replicas at version 0, of which each has four slots."""

    async def run() -> None:
        replicas = {
            f"http://{name}:8000": TorchEngine(
                model=qwen3(max_position_embeddings=1024),
                end_ids=end_ids,
                pad_id=PAD,
                num_slots=4,
                prompt_tokens=WIDTH,
                max_new_tokens=max_new_tokens,
            )
            for name in "abc"[:number]
        }
        engine = ReplicatedEngine(replicas)
        try:
            async with asyncio.timeout(60):
                await engine.swap(whole(qwen3()), Policy(0, 0), OnSwap.KEEP_KV)
                await scene(engine, replicas)
        finally:
            await engine.close()

    asyncio.run(run())


def test_samples_of_one_prompt_go_to_one_replica_and_prompts_spread() -> None:
    async def scene(engine: ReplicatedEngine, replicas: dict[str, TorchEngine]) -> None:
        assert (engine.num_slots, engine.room) == (12, 12)
        chosen = {group: {engine._choose(request(group, sample)) for sample in range(4)} for group in range(30)}
        assert all(len(names) == 1 for names in chosen.values())
        assert {name for names in chosen.values() for name in names} == set(replicas)

    play(scene)


def test_a_full_replica_gives_way_to_one_with_room() -> None:
    async def scene(engine: ReplicatedEngine, replicas: dict[str, TorchEngine]) -> None:
        samples = [request(3, sample) for sample in range(12)]
        tasks = [asyncio.ensure_future(engine.submit(each)) for each in samples]
        await asyncio.sleep(0)
        assert engine.room == 0
        assert len(set(map(id, engine._where.values()))) == 3
        await asyncio.gather(*tasks)
        assert engine.room == 12

    play(scene)


def test_requests_of_a_replica_that_dies_begin_again_on_another_one() -> None:
    async def scene(engine: ReplicatedEngine, replicas: dict[str, TorchEngine]) -> None:
        asked = [request(group, 0, max_new_tokens=LONG) for group in range(6)]
        expected = await asyncio.gather(*map(engine.submit, asked))
        tasks = [asyncio.ensure_future(engine.submit(each)) for each in asked]
        await asyncio.sleep(0.05)
        dying = engine._choose(asked[0])
        await replicas[dying].close()
        found = await asyncio.gather(*tasks)
        assert [each.token_ids for each in found] == [each.token_ids for each in expected]
        assert engine.num_slots == 8
        # What belonged to the others stays where it was.
        await engine.swap(whole(qwen3()), Policy(0, 1), OnSwap.KEEP_KV)
        assert len(await engine.digest()) == 32

    play(scene, end_ids=(), max_new_tokens=LONG)


def test_when_the_last_replica_has_died_so_has_the_engine() -> None:
    async def scene(engine: ReplicatedEngine, replicas: dict[str, TorchEngine]) -> None:
        for replica in replicas.values():
            await replica.close()
        for call in (engine.submit(request(0)), engine.drain(), engine.digest()):
            with pytest.raises(EngineDied, match="none of 2 replicas"):
                await call

    play(scene, number=2)


def test_abort_reaches_the_replica_that_has_the_request() -> None:
    async def scene(engine: ReplicatedEngine, replicas: dict[str, TorchEngine]) -> None:
        asked = [request(group, 0, max_new_tokens=LONG) for group in range(4)]
        tasks = [asyncio.ensure_future(engine.submit(each)) for each in asked]
        await asyncio.sleep(0.05)
        await engine.abort([asked[1].request_id, "unknown"])
        assert (await tasks[1]).end is CompletionEnd.ABORTED
        await engine.drain()
        assert {task.result().end for task in (tasks[0], *tasks[2:])} == {CompletionEnd.LENGTH}

    play(scene, end_ids=(), max_new_tokens=LONG)


def test_replicas_with_different_weights_have_no_digest_and_no_logprobs() -> None:
    async def scene(engine: ReplicatedEngine, replicas: dict[str, TorchEngine]) -> None:
        ids = np.arange(16, dtype=np.int64).reshape(2, 8)
        assert (await engine.logprobs(ids)).shape == (2, 7)
        await next(iter(replicas.values())).swap(whole(qwen3(seed=5)), Policy(0, 1), OnSwap.KEEP_KV)
        with pytest.raises(CorruptFrame, match="2 different states"):
            await engine.digest()
        with pytest.raises(CorruptFrame, match="two replicas"):
            await engine.logprobs(ids)
        with pytest.raises(WrongBase):
            await engine.swap(whole(llama()), Policy(0, 1), OnSwap.KEEP_KV)

    play(scene)
