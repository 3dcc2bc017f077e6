"""An engine that has its devices by turns with the trainer: nothing is computed while the trainer has them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from periplus.process.device_turns import DeviceTurns
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.engine import OnSwap, SampleRequest, WholeState
from rollout_worker.episodes.sharing_engine import SharingEngine
from tests.support.engines.models import qwen3, whole
from tests.support.engines.scripted import ScriptedEngine
from tests.support.tiny_engine import tiny_engine

Scene = Callable[[SharingEngine, DeviceTurns], Awaitable[None]]


def play(folder: Path, engine: SharingEngine, scene: Scene) -> None:
    async def run() -> None:
        running = asyncio.create_task(engine.run())
        await asyncio.sleep(0.02)  # it has its first turn
        async with asyncio.timeout(20):
            await scene(engine, DeviceTurns(folder))
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await engine.close()

    asyncio.run(run())


def asked(name: str, num_tokens: int = 4) -> SampleRequest:
    return SampleRequest(
        request_id=name,
        prompt_ids=(5, 6),
        seed=0,
        group=0,
        sample=0,
        temperature=1.0,
        max_new_tokens=num_tokens,
        greedy=False,
    )


def test_weights_are_written_in_a_turn_only(tmp_path: Path) -> None:
    scripted = ScriptedEngine()
    change = whole(qwen3())

    async def scene(engine: SharingEngine, trainer: DeviceTurns) -> None:
        async with trainer.training():
            assert scripted.is_suspended
            swapping = asyncio.create_task(engine.swap(change, Policy(0, 1), OnSwap.KEEP_KV))
            probing = asyncio.create_task(engine.digest())
            submitted = asyncio.create_task(engine.submit(asked("a")))
            await asyncio.sleep(0.05)
            assert not scripted.swapped
            assert not probing.done()
            assert scripted.asked == ["a"], "a request waits within the engine"
        await asyncio.gather(swapping, probing)
        assert not scripted.is_suspended
        assert [policy for policy, *_ in scripted.swapped] == [Policy(0, 1)]
        scripted.complete("a", PolicyRun(Policy(0, 1), 1))
        await submitted

    play(tmp_path, SharingEngine(scripted, DeviceTurns(tmp_path)), scene)


def test_a_turn_waits_for_the_check_that_is_under_way(tmp_path: Path) -> None:
    scripted = ScriptedEngine()

    async def scene(engine: SharingEngine, trainer: DeviceTurns) -> None:
        scripted.checking.clear()
        checking = asyncio.create_task(engine.digest())
        turn = trainer.training()
        waiting = asyncio.create_task(turn.__aenter__())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        scripted.checking.set()
        await asyncio.gather(checking, waiting)
        assert scripted.is_suspended

    play(tmp_path, SharingEngine(scripted, DeviceTurns(tmp_path)), scene)


def test_completions_under_way_go_on_with_the_same_tokens(tmp_path: Path) -> None:
    model = qwen3(0, max_position_embeddings=1024)
    change: WholeState = whole(model)

    def completed(folder: Path, num_turns: int) -> tuple[int, ...]:
        found: list[tuple[int, ...]] = []

        async def scene(engine: SharingEngine, trainer: DeviceTurns) -> None:
            await engine.swap(change, Policy(0, 0), OnSwap.KEEP_KV)
            sampling = asyncio.create_task(engine.submit(asked("a", 200)))
            for _ in range(num_turns):
                await asyncio.sleep(0.03)
                async with trainer.training():
                    await asyncio.sleep(0)  # what ended before the turn is delivered
                    was_done = sampling.done()
                    await asyncio.sleep(0.1)
                    assert sampling.done() is was_done, "nothing ends while the trainer computes"
            found.append((await sampling).token_ids)

        play(folder, SharingEngine(tiny_engine(model, max_new_tokens=200), DeviceTurns(folder)), scene)
        return found[0]

    assert completed(tmp_path / "turns", 3) == completed(tmp_path / "alone", 0)
