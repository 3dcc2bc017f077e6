"""Processes that play episodes of a user's own environment, one episode at a time each.

    open an episode --> an idle process, or a new one while there are fewer than allowed, or wait
                          |
                          +-- reset, step, step, ...   each with a time limit
                          |
                          +-- no answer in time, or the process ended: the episode has failed, and the process is gone

An episode has a process to itself, so that one which hangs or crashes costs no other episode, and a slow call holds up
nothing but its own episode. Processes are kept for later episodes. What the user's code raises costs the episode too.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from periplus.environment.environment import Item, Message
from periplus.environment.turns.protocol import TurnOutcome
from periplus.errors import RewardCrashed, RewardRaised, RewardTimedOut
from periplus.values.trajectory import MAX_REWARD, is_reward
from rollout_worker.rewards.child import ChildLost, RewardChild

PROCESS_MODULE = "rollout_worker.environments.process"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentProgram:
    """What a process loads: the user's class as MODULE:CLASS, its settings, and the folder of the user's modules.

    `may_stay`: it may run where the kernel cannot keep it from the worker (rewards/apart.py).
    """

    path: str
    config: Mapping[str, Any]
    folder: Path
    may_stay: bool = False

    async def start(self) -> RewardChild:
        """Start a process. Raises: ConfigError if the class cannot be loaded; ChildLost; OSError."""
        setup = {"path": self.path, "config": dict(self.config), "folder": str(self.folder), "may_stay": self.may_stay}
        return await RewardChild.spawn(PROCESS_MODULE, setup, what=f"environment.path {self.path}")


class ProcessEpisode:
    """One episode, played by a process. What it raises means that the episode has failed."""

    def __init__(self, child: RewardChild, path: str, timeout_s: float) -> None:
        self._child, self._path, self._timeout_s = child, path, timeout_s
        self.is_lost = False

    async def reset(self, item: Item) -> Sequence[Message]:
        """Begin the episode. Raises: RewardTimedOut, RewardCrashed, RewardRaised."""
        said = await self._call({"reset": _item(item)})
        return _messages(said["messages"])

    async def step(self, completion: str) -> TurnOutcome:
        """Return what follows a turn. Raises: RewardTimedOut, RewardCrashed, RewardRaised."""
        said = await self._call({"step": completion})
        reward = said["reward"]
        if not is_reward(reward):
            raise RewardRaised(
                f"{self._path} gave the reward {reward!r}; a reward is a number from -{MAX_REWARD:.0f} to "
                f"{MAX_REWARD:.0f}"
            )
        return TurnOutcome(reward=reward, messages=_messages(said["messages"]), is_done=said["done"])

    async def _call(self, message: Any) -> Mapping[str, Any]:
        try:
            await self._child.tell(message, self._timeout_s)
            # Until the answer is there, the process is of no use for another episode.
            self.is_lost = True
            said = await self._child.reply(self._timeout_s)
        except ChildLost as lost:
            self.is_lost = True
            error = RewardTimedOut if lost.timed_out else RewardCrashed
            raise error(f"the environment {self._path} gave no answer to a turn: {lost}") from lost
        if "raised" in said:
            self.is_lost = False
            raise RewardRaised(f"the environment {self._path} raised {said['raised']}")
        if not _is_answer(said):
            raise RewardCrashed(f"the process of the environment {self._path} wrote something else than an answer")
        self.is_lost = False
        return said


class EnvironmentPool:
    """At most `max_processes` processes of a program. Await `run` in a task; `open` gives an episode."""

    def __init__(self, program: EnvironmentProgram, *, max_processes: int, timeout_s: float) -> None:
        self.program, self.timeout_s = program, timeout_s
        self._idle: list[RewardChild] = []
        self._room = asyncio.Semaphore(max_processes)

    async def run(self) -> None:
        """Keep the processes until cancelled. Raises: ConfigError if the user's class cannot be loaded."""
        try:
            async with self._process():
                pass  # the first process shows early whether the class can be loaded
            await asyncio.Event().wait()
        finally:
            await asyncio.shield(asyncio.gather(*(child.kill() for child in self._idle)))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ProcessEpisode]:
        """Return an episode with a process to itself.

        Raises: ConfigError if the user's class cannot be loaded; RewardCrashed if no process can be started.
        """
        async with self._process() as child:
            episode = ProcessEpisode(child, self.program.path, self.timeout_s)
            try:
                yield episode
            finally:
                if episode.is_lost:
                    await asyncio.shield(child.kill())

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[RewardChild]:
        async with self._room:
            try:
                child = self._idle.pop() if self._idle else await self.program.start()
            except (ChildLost, OSError) as error:
                raise RewardCrashed(
                    f"no process for the environment {self.program.path} can be started: {error}"
                ) from error
            try:
                yield child
            finally:
                if child.is_alive:
                    self._idle.append(child)


def _item(item: Item) -> dict[str, Any]:
    return {
        "index": item.index,
        "prompt": item.prompt,
        "answer": item.answer,
        "messages": [each.to_mapping() for each in item.messages],
        "columns": dict(item.columns),
    }


def _messages(said: Sequence[Mapping[str, str]]) -> tuple[Message, ...]:
    return tuple(Message(role=each["role"], content=each["content"]) for each in said)


def _is_answer(said: Mapping[str, Any]) -> bool:
    messages, reward, done = said.get("messages"), said.get("reward", 0.0), said.get("done", False)
    return (
        isinstance(messages, list)
        and all(
            isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
            for each in messages
        )
        and isinstance(reward, float)
        and isinstance(done, bool)
    )
