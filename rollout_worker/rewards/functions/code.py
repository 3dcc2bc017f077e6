"""The reward `code`: the share of a problem's tests that the program in the completion passes.

program.py finds the program in a completion. Tests are of two kinds:

- statements, such as `assert f(1) == 2`: program and tests run in one process of the sandbox (harness.py). A test has
  passed if it raises nothing. What passed is told by a word that is drawn anew for each test, so that a program which
  ends early or prints what it likes passes nothing. A program that searches its own process for these words can find
  them. Values are compared by methods of Python's own classes: an object that claims to equal everything does not.
- mappings with `input` and `output`: the program runs once for each, and what it prints is compared, up to white space
  at the ends of lines and of the whole. Such a program never sees the expected output.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from periplus import clock
from periplus.environment.columns import value_at
from periplus.environment.rewards.completions import ScoredText, Settings, SingleFunction
from rollout_worker.rewards.functions.program import program_of
from rollout_worker.rewards.sandbox.run import RunLimits, SandboxRefused, run_program

SHARE = 0.8
"""Share of reward.timeout_s in which all runs of one program must end, so that the pool does not kill the process that
waits for them. Tests that did not get their turn count as failed. Chosen by hand."""

LEAST_S = 0.05
"""Seconds that a run needs at least, since starting an interpreter takes 15 ms. Chosen by hand."""

HARNESS = Path(__file__).with_name("harness.py").read_text(encoding="utf-8")


def build(settings: Settings) -> SingleFunction:
    """Return the function. Raises: RuntimeError where the kernel refuses a sandbox and the region wants one."""
    isolated = _is_isolated(may_be_without=settings["may_run_unsandboxed"])

    def code(text: ScoredText) -> float:
        tests = tests_of(text.columns, settings["tests_column"])
        runs = _Runs(settings, isolated=isolated)
        program = program_of(text.completion)
        if isinstance(tests[0], str):
            num_passed = runs.passed(program, [str(test) for test in tests])
        else:
            num_passed = sum(runs.prints(program, test["input"], test["output"]) for test in tests)
        return num_passed / len(tests) if settings["partial"] else float(num_passed == len(tests))

    return code


class _Runs:
    """Runs of one program, within one span of time."""

    def __init__(self, settings: Settings, *, isolated: bool) -> None:
        self._until_s = clock.monotonic_s() + SHARE * settings["timeout_s"]
        self._limit_s, self._memory_bytes = settings["time_limit_s"], settings["memory_mib"] << 20
        self._isolated = isolated

    def passed(self, program: str, tests: Sequence[str]) -> int:
        """Return how many of the statements raise nothing."""
        words = [secrets.token_bytes(16).hex().encode() for _ in tests]
        asked = list(zip(words, tests, strict=True))
        output = self._output(f"{HARNESS}\n\nrun({program!r}, {asked!r})\n", "")
        return sum(word in output for word in words)

    def prints(self, program: str, given: str, expected: str) -> bool:
        """Return whether the program answers an input with this output."""
        return _lines(self._output(program, given).decode(errors="replace")) == _lines(expected)

    def _output(self, source: str, given: str) -> bytes:
        time_s = min(self._limit_s, self._until_s - clock.monotonic_s())
        if time_s < LEAST_S:
            return b""
        limits = RunLimits(time_s=time_s, memory_bytes=self._memory_bytes)
        return run_program(source, given.encode(errors="replace"), limits, isolated=self._isolated).output


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def tests_of(columns: Mapping[str, Any], column: str) -> Sequence[Any]:
    """Return the tests of a problem with these columns, where a text is one statement or a list as JSON.

    Raises: ValueError if it has none, or others than it may.
    """
    tests = value_at(columns, column)
    if isinstance(tests, str):
        tests = _listed(tests)
    are_statements = isinstance(tests, list) and all(isinstance(test, str) for test in tests)
    are_inputs = isinstance(tests, list) and all(
        isinstance(test, Mapping) and isinstance(test.get("input"), str) and isinstance(test.get("output"), str)
        for test in tests
    )
    if not tests or not (are_statements or are_inputs):
        held = str(columns.get(column))[:80]
        raise ValueError(
            f"the problem's column {column!r} holds {held!r}, but must be a list of statements, "
            f"or of mappings with the texts input and output (the problem's columns: {', '.join(columns) or 'none'})"
        )
    return list(tests)


def _listed(tests: str) -> Any:
    # A list as text would be a statement that always holds.
    if not tests.lstrip().startswith(("[", "{")):
        return [tests]
    try:
        return json.loads(tests)
    except ValueError:
        return None


def _is_isolated(*, may_be_without: bool) -> bool:
    """Return whether programs can run in the sandbox here, which one trial shows."""
    try:
        trial = run_program("print('fine')", b"", RunLimits(time_s=30, memory_bytes=1 << 30))
    except (SandboxRefused, OSError) as error:
        if may_be_without:
            return False
        raise RuntimeError(
            f"programs that a model wrote cannot be kept from network and files here: {error}; let the worker's user "
            "make user namespaces, or start the agent with --allow-unsandboxed (docs/rewards.md)"
        ) from error
    if trial.output != b"fine\n":
        raise RuntimeError(f"no program runs in the sandbox here: exit code {trial.exit_code}, {trial.output[:80]!r}")
    return True
