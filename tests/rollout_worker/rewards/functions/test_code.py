"""The reward of programs, in the real sandbox."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from periplus.environment.rewards.completions import ScoredText
from rollout_worker.rewards.functions import code
from rollout_worker.rewards.sandbox.run import RunLimits, RunResult, SandboxRefused, run_program

SETTINGS: Mapping[str, Any] = {
    "tests_column": "tests",
    "partial": True,
    "time_limit_s": 5.0,
    "memory_mib": 256,
    "timeout_s": 20.0,
    "may_run_unsandboxed": False,
}


def can_isolate() -> bool:
    try:
        return run_program("", b"", RunLimits(time_s=10, memory_bytes=1 << 30)).exit_code == 0
    except SandboxRefused:
        return False


sandboxed = [
    pytest.mark.processes,
    pytest.mark.skipif(not can_isolate(), reason="this kernel refuses user namespaces"),
]
ASSERTS = ["assert double(2) == 4", "assert double(0) == 0", "assert double(-1) == -2"]
INPUTS = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5", "output": "10"}]


def value(program: str, tests: Sequence[Any], **changes: Any) -> float:
    text = ScoredText(prompt="", completion=program, answer="", num_tokens=1, columns={"tests": list(tests)})
    return code.build({**SETTINGS, **changes})(text)


class TestSandboxed:
    pytestmark = sandboxed

    def test_the_share_of_statements_that_hold_is_the_reward(self) -> None:
        right, half = "def double(x): return 2 * x", "def double(x): return abs(2 * x)"
        assert value(right, ASSERTS) == 1.0
        assert value(half, ASSERTS) == pytest.approx(2 / 3)
        assert value(half, ASSERTS, partial=False) == 0.0
        assert value("def double(x): return", ASSERTS) == 0.0
        assert value("syntax error", ASSERTS) == 0.0

    def test_classes_that_look_for_their_module_find_it(self) -> None:
        program = (
            "from __future__ import annotations\nimport dataclasses, pickle\n"
            "@dataclasses.dataclass\nclass Pair:\n    left: int\n    right: int = 2\n"
        )
        assert (
            value(program, ["assert Pair(1).right == 2", "assert pickle.loads(pickle.dumps(Pair(1))).left == 1"]) == 1
        )

    def test_an_object_that_claims_to_equal_everything_passes_nothing(self) -> None:
        liar = (
            "class Liar(int):\n    __eq__ = __ge__ = __le__ = __contains__ = lambda *_: True\n"
            "    __ne__ = lambda *_: False\n    __hash__ = int.__hash__\n"
            "class Plain:\n    __eq__ = lambda *_: True\n    __hash__ = lambda _: 0\n"
            "def double(x): return Liar(7)\ndef other(x): return [Plain(), {1: Plain()}][x]\n"
        )
        tests = [
            *ASSERTS,
            "assert 4 == double(2)",
            "assert [double(2)] == [4]",
            "assert {1: double(2)} == {1: 4}",
            "assert double(2) in (4, 5)",
            "assert 100 <= double(2)",
            "assert other(0) == 1",
            "assert other(1) == {1: 2}",
            "assert other(0) in [1, 2]",
        ]
        assert value(liar, tests) == 0.0

    def test_values_of_pythons_own_classes_compare_as_they_do_in_python(self) -> None:
        program = (
            "import collections, dataclasses, datetime, enum, fractions\n"
            "Point = collections.namedtuple('Point', 'x y')\n"
            "class Kind(enum.IntEnum):\n    A = 1\n"
            "@dataclasses.dataclass(frozen=True)\nclass Pair:\n    left: int\n"
            "def counts(text): return collections.Counter(text)\n"
            "def groups():\n    found = collections.defaultdict(list)\n    found[1].append('a')\n    return found\n"
        )
        tests = [
            "assert counts('aab') == {'a': 2, 'b': 1}",
            "assert groups() == {1: ['a']} and groups() != {}",
            "assert Point(1, 2) == (1, 2) and Point(1, 2) != [1, 2]",
            "assert Kind.A == 1 and 0 < Kind.A <= 1 < 2",
            "assert fractions.Fraction(1, 2) == 0.5 and 'a' in counts('ab') and 'c' not in counts('ab')",
            "assert counts('ab').keys() == {'a', 'b'} and list(range(2)) == [0, 1] and range(2) == range(0, 2)",
            "assert datetime.date(2020, 1, 2) < datetime.date(2020, 1, 3) and (1, 2) < (1, 3) and not None == 0",
            "assert Pair(1) == Pair(1) and Pair(1) != Pair(2) and Pair(1) in {Pair(1)} and None is None",
            "assert sorted(map(str, {3, 1})) == ['1', '3'] and max([1, 2], key=lambda x: x == 1) == 1",
        ]
        for test in tests:
            assert value(program, [test]) == 1.0, test
        wrong = [test.replace("assert ", "assert not (") + ")" for test in tests]
        assert value(program, wrong) == 0.0

    def test_what_a_program_prints_is_compared_for_each_input(self) -> None:
        right = "print(sum(map(int, input().split())))"
        assert value(right, INPUTS) == 1.0
        assert value("print(3)", INPUTS) == 0.5
        assert value("while True: pass", INPUTS, time_limit_s=0.3) == 0.0

    @pytest.mark.parametrize(
        "cheat",
        [
            "import os; os._exit(0)",
            "import sys; sys.exit(0)",
            "print('0;1;2;')",
            "import builtins; builtins.exec = lambda *a: None",
            "raise KeyboardInterrupt",
        ],
    )
    def test_a_program_that_ends_early_or_prints_what_it_likes_passes_nothing(self, cheat: str) -> None:
        assert value(cheat, ["assert False", "assert double(1) == 2"]) == 0.0

    def test_runs_stop_before_the_pool_would_kill_the_process(self) -> None:
        slow = "import time; time.sleep(0.4); print(3)"
        # None of them passes if the machine is so busy that its start alone takes the time.
        assert value(slow, [{"input": "", "output": "3"}] * 10, timeout_s=1.5) < 0.3

    @pytest.mark.parametrize("tests", [[], [1], [{"input": "x"}], ["assert 1", {"input": "", "output": ""}]])
    def test_a_problem_without_tests_is_an_error_that_names_the_column(self, tests: Sequence[Any]) -> None:
        with pytest.raises(ValueError, match="the problem's column 'tests'"):
            value("", tests)


def test_where_the_kernel_refuses_no_program_runs_unless_the_region_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(source: str, stdin: bytes, limits: RunLimits, *, isolated: bool = True) -> RunResult:
        asked.append(isolated)
        if isolated:
            raise SandboxRefused("unshare: Operation not permitted")
        return run_program(source, stdin, limits, isolated=False)

    monkeypatch.setattr(code, "run_program", refuse)
    with pytest.raises(RuntimeError, match="--allow-unsandboxed"):
        value("def double(x): return 2 * x", ASSERTS)
    assert value("def double(x): return 2 * x", ASSERTS, may_run_unsandboxed=True) == 1.0
    assert asked == [True, True, False]


def test_tests_may_be_a_text_with_one_statement_or_with_a_list_as_json() -> None:
    assert code.tests_of({"t": "assert f() == [1]"}, "t") == ["assert f() == [1]"]
    assert code.tests_of({"t": '["assert f()", "assert g()"]'}, "t") == ["assert f()", "assert g()"]
    with pytest.raises(ValueError, match="columns: t"):
        code.tests_of({"t": "['assert f()']"}, "t")
