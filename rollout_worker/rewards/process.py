"""The program of a reward process: it builds the functions that its worker names, and answers its calls one by one.

It is started as `python -m rollout_worker.rewards.process` with two pipes as standard input and output, which it takes
for itself: what functions print goes to the worker's log. It ends when the pipe closes, and the kernel kills it when
its worker dies, even while a function hangs. Everything runs in the main thread, since math-verify needs signals.
"""

import sys
from typing import Any

from rollout_worker.rewards.functions.completions import BatchFunction, ScoredText
from rollout_worker.rewards.functions.registry import build_function
from rollout_worker.rewards.pipes import Pipes, die_with_parent, taken_pipes, text_of


def main() -> None:
    """Serve the worker until it closes the pipe."""
    die_with_parent()
    pipes = taken_pipes()
    messages = pipes.messages()
    try:
        setup = next(messages)
        sys.path[:0] = [setup["folder"]] if setup["folder"] else []
        functions = [build_function(kind, settings) for kind, settings in setup["functions"]]
    except Exception as error:  # the root of foreign code: a user's module may raise anything
        pipes.say({"refused": text_of(error)})
        return
    pipes.say({"ready": True})
    for call in messages:
        _answer(pipes, functions[call["function"]], [ScoredText.of_json(each) for each in call["texts"]])


def _answer(pipes: Pipes, function: Any, texts: list[ScoredText]) -> None:
    if isinstance(function, BatchFunction):
        pipes.say(_reply(lambda: [_number(value) for value in function.score(texts)]))
        return
    for text in texts:
        pipes.say(_reply(lambda text=text: [_number(function(text))]))


def _reply(values: Any) -> Any:
    try:
        return {"values": values()}
    except Exception as error:  # the root of foreign code: a reward function may raise anything
        return {"raised": text_of(error)}


def _number(value: Any) -> float | None:
    return None if value is None else float(value)  # also of a NumPy number or a tensor of one element


if __name__ == "__main__":
    main()
