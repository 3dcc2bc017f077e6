"""Real processes of a user's environment: episodes keep apart, and what hangs or crashes costs one episode."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from periplus.environment.environment import Item, Message
from periplus.errors import ConfigError, RewardCrashed, RewardFailed, RewardRaised, RewardTimedOut
from rollout_worker.environments.pool import EnvironmentPool, EnvironmentProgram

pytestmark = pytest.mark.processes

GAME = """
import asyncio, os, time

class Game:
    def __init__(self, wait=0.0):
        self.wait, self.said = wait, []

    async def reset(self, item):
        self.said.append(item["prompt"])
        return None if item["index"] else [{"role": "system", "content": "begin"}, item["prompt"]]

    def step(self, completion):
        if completion == "hang": time.sleep(600)
        if completion == "crash": os._exit(3)
        if completion == "raise": raise KeyError("nothing")
        if completion == "odd": return "a text alone"
        if completion == "nan": return None, float("nan"), True
        time.sleep(self.wait)
        print("this goes to the log")
        self.said.append(completion)
        return "/".join(self.said), len(self.said), completion == "end"
"""


def item(index: int = 1) -> Item:
    return Item(index=index, prompt="go", answer="")


def play(
    folder: Path,
    scene: Callable[[EnvironmentPool], Awaitable[None]],
    *,
    path: str = "my_game:Game",
    wait: float = 0.0,
    processes: int = 4,
) -> None:
    (folder / "my_game.py").write_text(GAME)

    async def run() -> None:
        program = EnvironmentProgram(path=path, config={"wait": wait}, folder=folder)
        pool = EnvironmentPool(program, max_processes=processes, timeout_s=1.0)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(pool.run())
            await scene(pool)
            running.cancel()

    asyncio.run(run())


def test_episodes_have_objects_of_their_own_and_begin_with_the_messages_of_reset(tmp_path: Path) -> None:
    async def scene(pool: EnvironmentPool) -> None:
        async with pool.open() as one, pool.open() as other:
            assert await one.reset(item()) == ()
            opening = (Message(role="system", content="begin"), Message(role="user", content="go"))
            assert await other.reset(item(0)) == opening
            assert (await one.step("a")).messages == (Message(role="tool", content="go/a"),)
            last = await other.step("end")
            assert (last.messages[0].content, last.reward, last.is_done) == ("go/end", 2.0, True)
        async with pool.open() as again:
            await again.reset(item())
            assert (await again.step("b")).messages[0].content == "go/b"

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("hang", RewardTimedOut),
        ("crash", RewardCrashed),
        ("raise", RewardRaised),
        ("odd", RewardRaised),
        ("nan", RewardRaised),
    ],
)
def test_what_fails_costs_its_episode_alone(tmp_path: Path, said: str, error: type[RewardFailed]) -> None:
    async def scene(pool: EnvironmentPool) -> None:
        async with pool.open() as other:
            await other.reset(item())
            for _ in range(3):  # more often than there are further processes
                async with pool.open() as failing:
                    await failing.reset(item())
                    with pytest.raises(error, match="my_game:Game"):
                        await failing.step(said)
            assert (await other.step("fine")).messages[0].content == "go/fine"

    play(tmp_path, scene, processes=2)


def test_slow_steps_of_many_episodes_overlap(tmp_path: Path) -> None:
    async def episode(pool: EnvironmentPool) -> None:
        async with pool.open() as game:
            await game.reset(item())
            await game.step("a")

    async def scene(pool: EnvironmentPool) -> None:
        await asyncio.gather(*(episode(pool) for _ in range(8)))  # starts the processes
        began_s = time.monotonic()
        await asyncio.gather(*(episode(pool) for _ in range(16)))
        assert time.monotonic() - began_s < 0.5 * 16 * 0.5, "they wait for each other"

    play(tmp_path, scene, wait=0.5, processes=8)


@pytest.mark.parametrize("path", ["my_game:Missing", "no_module:Game"])
def test_a_class_that_cannot_be_loaded_ends_the_worker_with_the_reason(tmp_path: Path, path: str) -> None:
    async def scene(pool: EnvironmentPool) -> None:
        await asyncio.sleep(30)

    with pytest.raises(ExceptionGroup) as found:
        play(tmp_path, scene, path=path)
    (error,) = found.value.exceptions
    assert isinstance(error, ConfigError)
    assert f"environment.path {path} cannot be loaded" in str(error)
