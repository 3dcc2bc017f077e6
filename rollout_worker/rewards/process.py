"""The program of a reward process: it builds the functions that its worker names, and answers its calls one by one.

Its keeper starts it (keeper.py) with two pipes to the worker as standard input and output, which it takes for itself:
what functions print goes to the worker's log. It ends when the pipe closes, and the kernel kills it when its keeper
dies. Everything runs in the main thread, since math-verify needs signals.

Memory is bounded, so that a function which allocates without end gets a MemoryError before the machine is in need. If
the machine is in need all the same, the kernel ends reward processes before their worker.
"""

import contextlib
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from periplus.environment.rewards.completions import BatchFunction, ScoredText
from rollout_worker.rewards.apart import leave_worker
from rollout_worker.rewards.functions.registry import build_function
from rollout_worker.rewards.keeper import die_with_parent
from rollout_worker.rewards.pipes import taken_pipes, text_of


def main() -> None:
    """Serve the worker until it closes the pipe."""
    die_with_parent()
    pipes = taken_pipes()
    messages = pipes.messages()
    setup = next(messages)
    try:
        _bound_memory(setup["memory_bytes"])
        if setup["folder"]:
            leave_worker(setup["folder"], may_stay=setup["may_stay"])
        sys.path[:0] = [setup["folder"]] if setup["folder"] else []
        functions = [build_function(kind, settings) for kind, settings in setup["functions"]]
    except Exception as error:  # the root of foreign code: a user's module may raise anything
        pipes.say({"refused": text_of(error, setup.get("folder"))})
        return
    pipes.say({"ready": True})
    for call in messages:
        texts = [ScoredText.of_json(each) for each in call["texts"]]
        for reply in _replies(functions[call["function"]], texts, setup["folder"]):
            pipes.say({"call": call["call"], **reply})


def _replies(function: Any, texts: list[ScoredText], folder: str | None) -> Iterator[dict[str, Any]]:
    if isinstance(function, BatchFunction):
        yield _reply(lambda: [_number(value) for value in function.score(texts)], folder)
        return
    for text in texts:
        yield _reply(lambda text=text: [_number(function(text))], folder)


def _reply(values: Any, folder: str | None) -> dict[str, Any]:
    try:
        return {"values": values()}
    except Exception as error:  # the root of foreign code: a reward function may raise anything
        return {"raised": text_of(error, folder)}


def _number(value: Any) -> float | None:
    if isinstance(value, str | bytes):
        raise TypeError(f"{value!r:.80} is no number")
    return None if value is None else float(value)  # also of a NumPy number or a tensor of one element


def _bound_memory(most_bytes: int | None) -> None:
    with contextlib.suppress(OSError):  # a kernel without it
        Path("/proc/self/oom_score_adj").write_text("1000")
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
