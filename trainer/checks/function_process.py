"""A process that computes reward functions by name, for the trainer.

It is a process because a function may take any time (a regular expression, a formula), and because math-verify bounds
its own time by signals, which only a main thread gets. It reads and writes a line of JSON for each value, and ends when
its standard input closes.
"""

import asyncio
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from periplus.environment.rewards import NAMED
from periplus.environment.rewards.completions import ScoredText, Settings
from periplus.errors import RewardTimedOut

START_S = 60.0
"""Seconds until the functions must be built: math-verify takes 1 s on an idle machine. Chosen by hand."""

MAX_LINE_BYTES = 1 << 20
"""Bytes of an answer, which is one number."""


class FunctionProcess:
    """The process as the trainer sees it. It is started at the first call, and again after it was killed.

    `functions` are pairs of kind and settings.
    """

    def __init__(self, functions: Sequence[tuple[str, Settings]], timeout_s: float) -> None:
        self._functions, self._timeout_s = functions, timeout_s
        self._process: asyncio.subprocess.Process | None = None

    async def value(self, function: int, text: ScoredText) -> float | None:
        """Return the value of the function of this index, or None if it raised an error.

        Raises: RewardTimedOut; OSError, EOFError or TimeoutError if the process cannot be started or has ended. It is
        dead then.
        """
        try:
            if self._process is None:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", __name__),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    limit=MAX_LINE_BYTES,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                )
                await _answer(self._process, self._functions, START_S)
            try:
                found: float | None = await _answer(self._process, [function, text.to_json()], self._timeout_s)
            except TimeoutError as error:
                raise RewardTimedOut(f"it took more than {self._timeout_s:g} s") from error
        except BaseException:
            await self.close()
            raise
        return found

    async def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _answer(process: asyncio.subprocess.Process, message: Any, timeout_s: float) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    async with asyncio.timeout(timeout_s):
        await process.stdin.drain()
        line = await process.stdout.readline()
    if not line:
        raise EOFError(f"the process of the reward functions ended with exit code {await process.wait()}")
    return json.loads(line)


def main() -> None:
    """Build the functions that the first line names, and answer the others one by one."""
    answers, sys.stdout = sys.stdout, sys.stderr  # a library may print
    functions = [importlib.import_module(NAMED[kind]).build(each) for kind, each in json.loads(sys.stdin.readline())]
    print("null", file=answers, flush=True)
    for line in sys.stdin:
        (number, text), value = json.loads(line), None
        with contextlib.suppress(Exception):  # libraries raise anything for what a model wrote
            value = float(functions[number](ScoredText.of_json(text)))
        print(json.dumps(value), file=answers, flush=True)


if __name__ == "__main__":
    main()
