"""Real reward processes that hang, crash, raise and answer nonsense: each failure costs one completion."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from periplus.errors import ConfigError, RewardCrashed, RewardRaised, RewardTimedOut, leaves
from rollout_worker.rewards.building import RewardPlace, build_scorer
from rollout_worker.rewards.child import RewardChild, RewardProgram
from rollout_worker.rewards.pool import RewardPool
from rollout_worker.rewards.scorer import RewardScorer
from tests.support.processes.fake_engine import is_alive, wait_for
from tests.support.processes.rewards import Answered, play, reward, scores, scoring, text

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[3]

FAULTY = """
import os, sys, time
def score(prompts, completions, **columns):
    for completion in completions:
        match completion:
            case "hang": time.sleep(600)
            case "spin":
                while True: pass
            case "crash": os._exit(3)
            case "exit": sys.exit(0)
            case "segv": os.kill(os.getpid(), 11)
            case "raise": raise KeyError("no such thing")
            case "eat": os.write(4, b"x" * 100)
            case "nest": os.write(4, (100_000).to_bytes(4, "little") + b"[" * 100_000)
            case "close": os.closerange(0, 64)
            case "sleep in C": __import__("ctypes").CDLL(None).sleep(600)
            case "stop": os.kill(os.getpid(), 19)
            case "odd error": raise ValueError("\\ud800")
            case "import": import no_such_library
            case "for ever": return iter(lambda: 1.0, None)
            case "digits": return "1" * len(completions)
            case "mapping": return {n: n for n in range(len(completions))}
            case "too few": return []
    print("to the log, not to the worker")
    given = {"nan": float("nan"), "inf": float("inf"), "huge": 1e300, "text": "a", "number": "1.5", "none": None}
    return [given.get(c, float(len(c))) for c in completions]
"""
OWN = {"path": "faulty:score"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "faulty.py").write_text(FAULTY)
    return tmp_path


def outcomes(folder: Path, completions: Sequence[str], **rest: Any) -> list[Any]:
    """Return the rewards, or the classes of the errors."""

    async def scene() -> list[Any]:
        section = reward(OWN, **{"on_failure": "fail", "timeout_s": 0.5, **rest})
        async with scoring(section, "", code_folder=folder) as scorer:
            found = await scores(scorer, Answered("").item(0), completions)
            # The processes that were lost were replaced: all of this is scored as before.
            assert [each.reward for each in await scores(scorer, Answered("").item(0), ["abc"] * 9)] == [3.0] * 9
            return [type(each) if isinstance(each, Exception) else each.reward for each in found]

    return play(scene)


@pytest.mark.parametrize(
    ("completion", "error"),
    [
        ("hang", RewardTimedOut),
        ("spin", RewardTimedOut),
        ("crash", RewardCrashed),
        ("exit", RewardCrashed),
        ("segv", RewardCrashed),
        ("eat", RewardCrashed),
        ("nest", RewardCrashed),
        ("close", RewardCrashed),
        ("sleep in C", RewardTimedOut),
        ("stop", RewardTimedOut),
        ("raise", RewardRaised),
    ],
)
def test_a_failure_costs_the_one_completion_that_caused_it(
    folder: Path, completion: str, error: type[Exception]
) -> None:
    others = [f"{number:05}" for number in range(20)]
    assert outcomes(folder, [*others[:10], completion, *others[10:]]) == [*[5.0] * 10, error, *[5.0] * 10]


def test_no_answer_that_is_no_reward_costs_another_completion(folder: Path) -> None:
    raised = ["odd error", "import", "for ever", "digits", "mapping", "too few", "nan", "inf", "number", "huge", "text"]
    mixed = [each for number, one in enumerate(raised) for each in (f"{number:05}", one)]
    assert outcomes(folder, mixed) == [5.0, RewardRaised] * len(raised)


def test_an_error_can_be_sent_on_whatever_its_text(folder: Path) -> None:
    async def scene() -> list[Any]:
        async with scoring(reward(OWN, on_failure="fail"), "", code_folder=folder) as scorer:
            return await scores(scorer, Answered("").item(0), ["odd error"])

    (error,) = play(scene)
    assert str(error).encode() == b"faulty:score raised ValueError: ? (line 18 of faulty.py)"


def test_a_copy_of_the_process_that_a_function_makes_answers_nothing(folder: Path) -> None:
    (folder / "faulty.py").write_text(
        "import os\ndef score(completions):\n    os.fork()\n    return [len(c) for c in completions]"
    )
    assert outcomes(folder, ["x" * n for n in range(1, 40)], processes=1) == list(range(1, 40))


def test_an_answer_that_a_function_writes_itself_is_not_taken_for_one_to_a_later_call(folder: Path) -> None:
    (folder / "faulty.py").write_text(
        "import os\ndef score(completions):\n"
        "    said = b'{\"call\": 1, \"values\": [%s]}' % (b'9' * 402)\n"
        "    if completions == ['forge']: os.write(4, len(said).to_bytes(4, 'little') + said)\n"
        "    return [len(c) for c in completions]"
    )

    async def scene() -> list[Any]:
        async with scoring(reward(OWN, on_failure="fail", processes=1), "", code_folder=folder) as scorer:
            item = Answered("").item(0)
            return [(await scores(scorer, item, [each]))[0] for each in ("forge", "ab", "abc")]

    forged, next_one, last = play(scene)
    assert isinstance(forged, RewardRaised)  # a number that no float can be
    assert isinstance(next_one, RewardCrashed)
    assert last.reward == 3.0


def test_a_function_that_allocates_without_end_gets_an_error(folder: Path) -> None:
    (folder / "faulty.py").write_text(
        "def score(completions):\n    return [len(bytearray(1 << 29 if c == 'much' else 9)) for c in completions]"
    )

    async def scene() -> list[Any]:
        program = RewardProgram(functions=(("path", OWN),), folder=folder, memory_bytes=1 << 28)
        pool = RewardPool(
            program=program, num_processes=1, timeout_s=5, labels=("faulty:score",), batched=frozenset({0})
        )
        running = asyncio.create_task(pool.run())
        try:
            asked = (pool.call(0, text(each)) for each in ("a", "much", "b"))
            return await asyncio.gather(*asked, return_exceptions=True)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    first, much, last = play(scene)
    assert (first, last) == (9, 9)
    assert "MemoryError" in str(much)


def test_the_processes_of_functions_are_bounded_and_ended_before_their_worker(folder: Path) -> None:
    (folder / "faulty.py").write_text(
        "import resource\ndef score(completions):\n"
        "    bounded = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY\n"
        "    return [bounded * int(open('/proc/self/oom_score_adj').read()) for _ in completions]"
    )

    async def scene() -> list[Any]:
        async with scoring(reward(OWN), "", code_folder=folder) as scorer:
            return await scores(scorer, Answered("").item(0), ["a"])

    assert [each.reward for each in play(scene)] == [1000.0]


def test_each_of_several_that_hang_is_lost_and_no_other(folder: Path) -> None:
    completions = ["hang" if number % 7 == 0 else f"{number:06}" for number in range(30)]
    found = outcomes(folder, completions, timeout_s=0.3)
    assert [each == RewardTimedOut for each in found] == [completion == "hang" for completion in completions]


def test_a_value_stands_in_for_a_function_that_failed_and_its_kind_is_told(folder: Path) -> None:
    async def scene() -> list[Any]:
        section = reward(OWN, {"name": "length", "target": 0, "max": 2}, timeout_s=0.5, failure_value=-2)
        async with scoring(section, "", code_folder=folder) as scorer:
            return await scores(scorer, Answered("").item(0), ["hang", "crash", "raise", "none", "fine"])

    found = play(scene)
    failures = [dict(each.failures) for each in found]
    assert failures == [
        {"faulty:score": "timed_out"},
        {"faulty:score": "crashed"},
        {"faulty:score": "raised"},
        {},
        {},
    ]
    assert [each.reward for each in found] == [-2.5, -2.5, -2.5, -0.5, 3.5]
    assert dict(found[3].parts) == {"length": -0.5}  # None: the function does not judge it


def test_a_function_that_always_fails_is_not_replaced_by_a_value_for_ever(folder: Path) -> None:
    async def scene() -> list[Any]:
        async with scoring(reward(OWN, processes=1), "", code_folder=folder) as scorer:
            item = Answered("").item(0)
            await scores(scorer, item, ["fine"])
            early = await scores(scorer, item, ["raise"] * 60)
            late = await scores(scorer, item, ["raise"] * 8)
            healed = await scores(scorer, item, ["fine"])
            return [*early, *late, *healed, *await scores(scorer, item, ["raise"])]

    found = play(scene)
    assert [isinstance(each, RewardRaised) for each in found] == [False] * 63 + [True] * 5 + [False] * 2


def test_a_function_that_has_only_ever_failed_ends_the_worker_with_its_own_error(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> list[Any]:
        place = RewardPlace(code_folder=folder, most_first_failures=8)
        # One process, so that the calls end in their order.
        scorer = build_scorer(reward(OWN, processes=1), Answered(""), asyncio.Lock(), place)
        assert isinstance(scorer, RewardScorer)
        running = asyncio.create_task(scorer.run())
        found = await scores(scorer, Answered("").item(0), ["raise"] * 8)
        await asyncio.wait({running})
        return [*found, *leaves(running.exception() or AssertionError())]

    *found, error = play(scene)
    assert [isinstance(each, RewardRaised) for each in found] == [False] * 7 + [True]
    assert isinstance(error, ConfigError)
    assert "faulty:score has failed all 8 times" in str(error)
    assert "KeyError: 'no such thing' (line 12 of faulty.py)" in str(error)
    fields = [vars(each)["fields"] for each in caplog.records if each.message == "reward_function_failed"]
    assert [each["failures"] for each in fields] == [1, 2, 3, 4, 5]
    assert fields[0] == {
        "function": "faulty:score",
        "failures": 1,
        "why": fields[0]["why"],
        "item": 0,
        "group": 0,
        "sample": 0,
        "completion": "'raise'",
    }


def test_a_module_that_cannot_be_imported_is_told_with_its_error(folder: Path) -> None:
    (folder / "faulty.py").write_text("import no_such_library")

    async def scene() -> None:
        pool = RewardPool(
            program=RewardProgram(functions=(("path", OWN),), folder=folder),
            num_processes=1,
            timeout_s=1,
            labels=("faulty:score",),
        )
        await pool.run()

    with pytest.raises(ExceptionGroup) as raised:
        play(scene)
    assert raised.group_contains(ConfigError, match="No module named 'no_such_library'")


def test_a_regular_expression_that_never_ends_costs_its_completion() -> None:
    async def scene() -> list[Any]:
        section = reward({"name": "regex", "pattern": "(a+)+b"}, timeout_s=0.3, on_failure="fail")
        async with scoring(section, "") as scorer:
            return await scores(scorer, Answered("").item(0), ["aab", "a" * 60, "b", "ab"])

    found = play(scene)
    assert [type(each) if isinstance(each, Exception) else each.reward for each in found] == [
        1.0,
        RewardTimedOut,
        0.0,
        1.0,
    ]


def test_functions_see_no_variable_of_the_workers_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "12345")
    (folder / "faulty.py").write_text(
        "import os\ndef score(completions):\n    return [len(os.environ.get('SECRET_TOKEN', '')) for _ in completions]"
    )

    async def scene() -> list[Any]:
        async with scoring(reward(OWN), "", code_folder=folder) as scorer:
            return await scores(scorer, Answered("").item(0), ["a"])

    assert [each.reward for each in play(scene)] == [0.0]


def test_functions_see_no_other_process(folder: Path) -> None:
    (folder / "faulty.py").write_text(
        "import os\n"
        "def readable(path):\n"
        "    try:\n"
        "        return open(path, 'rb').read(1) is not None\n"
        "    except OSError:\n"
        "        return False\n"
        "def score(completions):\n"
        "    others = [each for each in os.listdir('/proc') if each.isdigit() and int(each) != os.getpid()]\n"
        "    assert str(os.getppid()) in others and os.path.exists('/proc/1')\n"
        "    seen = [each for each in others for name in ('environ', 'mem') if readable(f'/proc/{each}/{name}')]\n"
        "    return [len(seen) for _ in completions]"
    )

    async def scene() -> list[Any]:
        async with scoring(reward(OWN), "", code_folder=folder) as scorer:
            return await scores(scorer, Answered("").item(0), ["a"])

    assert [each.reward for each in play(scene)] == [0.0]


def test_a_process_starts_without_torch(folder: Path) -> None:
    (folder / "faulty.py").write_text(
        "import sys\ndef score(completions):\n    return [float('torch' in sys.modules) for _ in completions]"
    )

    async def scene() -> float | None:
        child_pool = RewardPool(
            program=RewardProgram(functions=(("path", OWN), ("exact", {"ignore_case": True})), folder=folder),
            num_processes=1,
            timeout_s=1,
            labels=("faulty:score", "exact"),
            batched=frozenset({0}),
        )
        running = asyncio.create_task(child_pool.run())
        try:
            assert await child_pool.call(1, text("YES", answer="yes ")) == 1.0
            return await child_pool.call(0, text(""))
        finally:
            running.cancel()

    assert play(scene) == 0.0


KILLED = """
import asyncio, sys
from pathlib import Path
from rollout_worker.rewards.child import RewardChild, RewardProgram
from periplus.environment.rewards.completions import ScoredText
async def main():
    program = RewardProgram(functions=(("path", {"path": "faulty:score"}),), folder=Path(sys.argv[1]))
    child = await RewardChild.start(program)
    text = ScoredText(prompt="", completion="spin", answer="", num_tokens=1, messages=(), columns={})
    await child.tell({"call": 1, "function": 0, "texts": [text.to_json()]}, 5)
    print(child._process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_a_hanging_process_dies_with_its_worker(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        assert is_alive(pid)
        os.kill(worker.pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(pid), "the end of the reward process")


def test_children_of_a_function_die_with_its_process(folder: Path, tmp_path: Path) -> None:
    (folder / "faulty.py").write_text(
        "import subprocess, time\nfrom pathlib import Path\ndef score(completions):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        f"    Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "    time.sleep(600)"
    )
    assert outcomes_of_hang(folder) == [RewardTimedOut]
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_alive(pid), "the end of what the function started")


def outcomes_of_hang(folder: Path) -> list[Any]:
    async def scene() -> list[Any]:
        async with scoring(reward(OWN, on_failure="fail", timeout_s=1), "", code_folder=folder) as scorer:
            return [type(each) for each in await scores(scorer, Answered("").item(0), ["a"])]

    return play(scene)


def test_a_process_is_not_asked_again_after_it_was_killed() -> None:
    async def scene() -> None:
        child = await RewardChild.start(RewardProgram(functions=(("exact", {"ignore_case": False}),)))
        await child.kill()
        await child.kill()

    play(scene)
