"""One process of rewards, or of an environment, as its worker sees it: started, asked, and killed with its children.

What is started is its keeper, which ends it with all that it has started when it is told to or the worker dies
(keeper.py). The keeper has a session of its own, so that nobody who kills the worker's session kills it before that.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from periplus.environment.rewards.completions import Settings
from periplus.errors import FunctionRefused
from rollout_worker.rewards import wire

START_DEADLINE_S = 300.0
"""Seconds until a process must have built its functions. math-verify takes 1 s and torch 5 s on an idle machine; a
reward model's weights may come from a slow disk. Chosen by hand."""

GRACE_S = 0.1
"""Seconds after a deadline in which an answer that came in time, while this process was busy, is still read. Chosen by
hand."""

ENDING_S = 1.0
"""Seconds in which a process that has closed its pipes may end by itself, so that it is known how. Chosen by hand: its
keeper takes a few milliseconds."""

END_DEADLINE_S = 10.0
"""Seconds to wait for a killed process. The kernel ends one within milliseconds, unless a driver blocks it. Chosen by
hand."""

PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONHASHSEED")
"""Environment variables that a reward process gets. Others may hold credentials of the worker's region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardProgram:
    """What a reward process builds: functions as (kind, settings), and the folder of the user's own modules, if any."""

    functions: tuple[tuple[str, Settings], ...]
    folder: Path | None = None
    may_stay: bool = False
    """Whether the user's modules may run where the kernel cannot keep them from the worker (apart.py)."""
    num_threads: int = 1
    memory_bytes: int | None = None
    """Most memory that the process may allocate; None bounds nothing."""


class ChildLost(Exception):
    """A reward process gave no answer: it ended, or `timed_out`. It is dead now."""

    def __init__(self, *, timed_out: bool, why: str) -> None:
        super().__init__(why)
        self.timed_out = timed_out


class RewardChild:
    """A reward process that is ready to be asked. Make it with `start`, and end it with `kill`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, program: RewardProgram) -> "RewardChild":
        """Start a process and have it build its functions.

        Raises: FunctionRefused if it cannot build them; ChildLost if it ends or takes too long; OSError.
        """
        folder = None if program.folder is None else str(program.folder)
        setup = {"functions": program.functions, "folder": folder, "memory_bytes": program.memory_bytes}
        setup["may_stay"] = program.may_stay
        module = "rollout_worker.rewards.process"
        return await cls.spawn(module, setup, what="the reward functions", num_threads=program.num_threads)

    @classmethod
    async def spawn(cls, module: str, setup: Any, *, what: str, num_threads: int = 1) -> "RewardChild":
        """Start a keeper that runs the `main` of a module, which loads what `setup` names; errors call it `what`.

        Raises: FunctionRefused if it cannot be loaded; ChildLost if the process ends or takes too long; OSError.
        """
        package_root = str(Path(__file__).parents[2])
        child = cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "rollout_worker.rewards.keeper",
                module,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
                env=_variables(package_root, num_threads),
            )
        )
        try:
            await child.tell(setup, START_DEADLINE_S)
            said = await child.reply(START_DEADLINE_S)
            if "refused" in said:
                raise FunctionRefused(f"{what} cannot be loaded: {said['refused']}")
        except BaseException:
            await child.kill()
            raise
        return child

    @property
    def is_alive(self) -> bool:
        """Whether the process has not been seen to end."""
        return self._process.returncode is None

    async def tell(self, message: Any, timeout_s: float) -> None:
        """Send a message. Raises: ChildLost if the process has ended, or does not read it in time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(wire.framed(message))
            async with asyncio.timeout(timeout_s):
                await self._process.stdin.drain()
        except TimeoutError as error:
            await self.kill()
            raise ChildLost(timed_out=True, why=f"it did not read a call within {timeout_s:g} s") from error
        except OSError as error:
            raise await self._ended() from error

    async def reply(self, timeout_s: float) -> Mapping[str, Any]:
        """Return the next answer. Raises: ChildLost if there is none in time; the process is killed then."""
        reading = asyncio.ensure_future(self._read())
        try:
            done, _ = await asyncio.wait({reading}, timeout=timeout_s)
            if not done:
                done, _ = await asyncio.wait({reading}, timeout=GRACE_S)
            if not done:
                await self.kill()
                raise ChildLost(timed_out=True, why=f"it gave no answer within {timeout_s:g} s")
            return reading.result()
        except (EOFError, OSError) as error:
            raise await self._ended() from error
        except ValueError as error:
            await self.kill()
            raise ChildLost(timed_out=False, why=f"its process wrote something else than an answer: {error}") from error
        finally:
            reading.cancel()

    async def kill(self) -> None:
        """End the process with all that it has started, and wait for its end."""
        # The group is killed only if its keeper does not end.
        for send, number in ((os.kill, signal.SIGTERM), (os.killpg, signal.SIGKILL)):
            if self._process.returncode is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                send(self._process.pid, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_DEADLINE_S):
                    await self._process.wait()

    async def _read(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        (length,) = wire.LENGTH.unpack(await self._process.stdout.readexactly(wire.LENGTH.size))
        if length > wire.MAX_REPLY_BYTES:
            raise ValueError(f"an answer of {length} bytes")
        said = wire.read(await self._process.stdout.readexactly(length))
        if not isinstance(said, dict):
            raise ValueError("an answer that is no mapping")
        return said

    async def _ended(self) -> ChildLost:
        with contextlib.suppress(TimeoutError):  # a process closes its pipes before its parent hears how it ended
            async with asyncio.timeout(ENDING_S):
                await self._process.wait()
        await self.kill()
        code = self._process.returncode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return ChildLost(timed_out=False, why=f"its process {how}")


def _variables(package_root: str, num_threads: int) -> dict[str, str]:
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(num_threads),
        "TOKENIZERS_PARALLELISM": "false",
    }


def answered(said: Mapping[str, Any], call: int, num_texts: int) -> Sequence[Any] | None:
    """Return the values of an answer to a call, one to `num_texts` of them; None if it holds anything else."""
    values = said.get("values")
    return values if said.get("call") == call and isinstance(values, list) and 0 < len(values) <= num_texts else None
