"""Turns of a trainer and of workers on the same devices: one side at a time, whatever ends a process."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from periplus.process.device_turns import DeviceTurns

WORKER = """
import asyncio, sys
from pathlib import Path
from periplus.process.device_turns import DeviceTurns

async def hold():
    await DeviceTurns(Path(sys.argv[1])).take()
    print("has them", flush=True)
    await asyncio.sleep(60)

asyncio.run(hold())
"""


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20):
            await scene()

    asyncio.run(run())


def test_a_trainer_waits_for_all_workers_and_they_wait_for_it(tmp_path: Path) -> None:
    trainer, workers = DeviceTurns(tmp_path), [DeviceTurns(tmp_path), DeviceTurns(tmp_path)]
    holders, seen = set[str](), list[frozenset[str]]()

    async def sample(name: str, turns: DeviceTurns) -> None:
        while True:
            await turns.take()
            holders.add(name)
            seen.append(frozenset(holders))
            await turns.wanted()
            await asyncio.sleep(0.02)  # it stops between two tokens
            holders.remove(name)
            turns.give_up()

    async def scene() -> None:
        sampling = [asyncio.create_task(sample(str(number), each)) for number, each in enumerate(workers)]
        for _ in range(5):
            await asyncio.sleep(0.03)
            async with trainer.training():
                holders.add("trainer")
                seen.append(frozenset(holders))
                await asyncio.sleep(0.03)
                holders.remove("trainer")
        for each in sampling:
            each.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*sampling)

    play(scene)
    assert frozenset({"trainer"}) in seen
    assert frozenset({"0", "1"}) in seen, "workers share the devices"
    assert not [each for each in seen if "trainer" in each and len(each) > 1], seen


def test_a_worker_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()

        async def scene() -> None:
            turn = DeviceTurns(tmp_path).training()
            waiting = asyncio.create_task(turn.__aenter__())
            await asyncio.sleep(0.1)
            assert not waiting.done(), "the worker has the devices"
            worker.kill()
            await waiting

        play(scene)


def test_a_trainer_that_gives_up_waiting_lets_workers_go_on(tmp_path: Path) -> None:
    async def scene() -> None:
        worker, other = DeviceTurns(tmp_path), DeviceTurns(tmp_path)
        await worker.take()

        async def train() -> None:
            async with DeviceTurns(tmp_path).training():
                raise AssertionError("the worker never gave the devices up")

        waiting = asyncio.create_task(train())
        await worker.wanted()
        taking = asyncio.create_task(other.take())
        await asyncio.sleep(0.05)
        assert not taking.done(), "nobody takes what the trainer wants"
        waiting.cancel()
        await taking

    play(scene)
