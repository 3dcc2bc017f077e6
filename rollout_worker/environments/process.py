"""The program of an environment's process: it loads the user's class, and plays one episode after another with it.

    worker -> process   {"path": ..., "config": {...}, "folder": ...}    once, what to load
    process -> worker   {"ready": true} or {"refused": text}
    worker -> process   {"reset": problem} or {"step": text}             any number of times
    process -> worker   {"messages": [...]}, with "reward" and "done" after a step, or {"raised": text}

Its keeper starts and ends it, like a reward process (rewards/keeper.py, rewards/process.py). Each episode has a new
object of the class. Its methods may be coroutine functions; they share one event loop.
"""

import asyncio
import importlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rollout_worker.rewards.apart import leave_worker
from rollout_worker.rewards.keeper import die_with_parent
from rollout_worker.rewards.pipes import taken_pipes, text_of


class Player:
    """Plays episodes with objects of `environment`, which is called with the settings `config`."""

    def __init__(self, environment: Any, config: Mapping[str, Any], runner: asyncio.Runner) -> None:
        self._class, self._config, self._runner = environment, config, runner
        self._episode: Any = None

    def answer(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a call of the worker. Raises: whatever the user's code raises."""
        if "reset" in call:
            self._episode = self._class(**self._config)
            return {"messages": _messages(self._result(self._episode.reset(call["reset"])), "user")}
        said = self._result(self._episode.step(call["step"]))
        if not isinstance(said, tuple | list) or len(said) != 3:
            raise TypeError(f"step returned {said!r:.80}; it returns (messages, reward, done)")
        messages, reward, done = said
        if isinstance(reward, str | bytes):
            raise TypeError(f"step returned the reward {reward!r:.80}, which is no number")
        added = _messages(messages, "tool")
        if not (done or added):
            raise ValueError("step returned no message, and the episode is not done")
        return {"messages": added, "reward": float(reward), "done": bool(done)}

    def _result(self, value: Any) -> Any:
        return self._runner.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> Any:
    return await value


def _messages(said: Any, role: str) -> list[dict[str, str]]:
    """Return messages of what a method said: None, one text, or a list of texts and mappings."""
    if said is not None and (isinstance(said, bytes | Mapping) or not isinstance(said, Iterable)):
        raise TypeError(f"{said!r:.80} stands for messages; they are None, a text, or a list of texts and mappings")
    listed = [] if said is None else [said] if isinstance(said, str) else list(said)
    return [
        {"role": role, "content": each} if isinstance(each, str) else {"role": each["role"], "content": each["content"]}
        for each in listed
    ]


def main() -> None:
    """Serve the worker until it closes the pipe."""
    die_with_parent()
    pipes = taken_pipes()
    messages = pipes.messages()
    setup = next(messages)
    try:
        leave_worker(setup["folder"], may_stay=setup["may_stay"])
        sys.path[:0] = [setup["folder"]]
        module, _, name = setup["path"].partition(":")
        environment = getattr(importlib.import_module(module), name)
        environment(**setup["config"])  # settings that it does not take show here
    except Exception as error:  # the root of foreign code: a user's module may raise anything
        pipes.say({"refused": text_of(error, setup["folder"])})
        return
    pipes.say({"ready": True})
    with asyncio.Runner() as runner:
        player = Player(environment, setup["config"], runner)
        for call in messages:
            try:
                said = player.answer(call)
            except Exception as error:  # the root of foreign code: an environment may raise anything
                said = {"raised": text_of(error, setup["folder"])}
            pipes.say(said)
