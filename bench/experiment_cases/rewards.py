"""Claims: rewards by math-verify keep up with the library, and a reward that hangs costs the episode that it was for.

`rewards_per_s_math_verify`: completions a second that a scorer with two processes scores, while as many wait as a
worker has under way; at least 0.8 times what the library does in one process that calls `parse` and `verify` in a loop
and nothing else. Both get the same texts: solutions of MATH, and the same with a wrong answer, each problem once, so
that nothing is gained by remembering parsed answers. First all values of both are compared with what is known of each
text. They run by turns, and the medians are compared, because other work on the machine would favour one of them.

`hung_reward_lost_episodes`: of 512 episodes that a user's own function scores in batches, some hang for ever, at drawn
places. An episode is lost if its reward is not the function's own value. As many are lost as hang, and no other.
"""

import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.experiment_cases.case import CaseResult, Figure
from periplus.environment.environment import Item
from periplus.job.reward_functions import MathReward, OwnReward
from periplus.job.reward_section import RewardSection
from rollout_worker.episodes.scoring import SampleScore
from rollout_worker.rewards.building import RewardPlace, build_scorer
from rollout_worker.rewards.scorer import RewardScorer

DATA = Path(__file__).parent / "data" / "math_solutions.jsonl"
LEAST_SHARE = 0.8
"""Target: least rate, as a share of the library's own."""

NUM_PROCESSES = 2
UNDER_WAY = 256
"""Samples that wait for their reward at the same time: the slots of an engine, four times over."""

HANG_S = 1.0
"""Time limit of the function that hangs."""

LIBRARY = """
import json, sys, time
from math_verify import parse, verify
texts = json.load(sys.stdin)
def values():
    return [float(bool(verify(parse("\\\\boxed{" + answer + "}"), parse(text)))) for answer, text in texts]
values()
began = time.perf_counter()
found = values()
print(json.dumps([len(texts) / (time.perf_counter() - began), found]))
"""
"""The library alone: a process that has scored all texts once before it is timed."""

HANGING = """
import time
def score(prompts, completions, **columns):
    if "hang" in completions:
        time.sleep(3600)
    return [float(len(completion)) for completion in completions]
"""


class NoProblems:
    """An environment without problems, since nothing here asks it."""

    def __len__(self) -> int:
        return 0

    def item(self, index: int) -> Item:
        raise IndexError(index)

    def score(self, index: int, completion: str) -> float:
        raise IndexError(index)


def texts() -> tuple[list[tuple[str, str]], list[float]]:
    """Return pairs of an answer and a completion, and the value of each: half of the completions are wrong."""
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    right = [(row["answer"], row["completion"]) for row in rows]
    wrong = [(row["answer"], re.sub(r"\\boxed\{", r"\\boxed{1234567 + ", row["completion"])) for row in rows]
    return right + wrong, [1.0] * len(right) + [0.0] * len(wrong)


def library_rate(pairs: Sequence[tuple[str, str]]) -> tuple[float, list[float]]:
    """Return the texts a second of the library alone, and its values."""
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY], input=json.dumps(pairs), capture_output=True, text=True, check=True
    )
    rate, values = json.loads(done.stdout)
    return rate, values


async def our_rate(pairs: Sequence[tuple[str, str]]) -> tuple[float, list[float]]:
    """Return the texts a second of a scorer with its processes, after one round that is not timed, and its values."""
    section = RewardSection(functions=(MathReward(name="math"),), processes=NUM_PROCESSES)
    scorer = build_scorer(section, NoProblems(), asyncio.Lock(), RewardPlace(code_folder=None))
    assert isinstance(scorer, RewardScorer)
    running = asyncio.create_task(scorer.run())
    try:
        # Other answers than those that are timed: parsed answers are remembered.
        await scored(scorer, [(f"{answer} + 0", text) for answer, text in pairs])
        began_s = time.perf_counter()
        found = await scored(scorer, pairs)
        return len(pairs) / (time.perf_counter() - began_s), [each.reward or 0.0 for each in found]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def scored(scorer: RewardScorer, pairs: Sequence[tuple[str, str]]) -> list[SampleScore]:
    """Have all texts scored, at most UNDER_WAY of them at a time."""
    room = asyncio.Semaphore(UNDER_WAY)

    async def one(answer: str, text: str) -> SampleScore:
        async with room:
            return await scorer.score(Item(index=0, prompt="", answer=answer), text, num_tokens=1)

    return await asyncio.gather(*(one(*pair) for pair in pairs))


async def lost_episodes(num: int, num_hung: int) -> int:
    """Return how many of `num` episodes did not get their own value, of which `num_hung` hang."""
    drawn = random.Random(0)
    hung = set(drawn.sample(range(num), num_hung))
    completions = ["hang" if number in hung else "x" * drawn.randrange(1, 99) for number in range(num)]
    section = RewardSection(functions=(OwnReward(path="hanging:score"),), timeout_s=HANG_S, failure_value=-1.0)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hanging.py").write_text(HANGING)
        place = RewardPlace(code_folder=Path(folder))
        scorer = build_scorer(section, NoProblems(), asyncio.Lock(), place)
        assert isinstance(scorer, RewardScorer)
        running = asyncio.create_task(scorer.run())
        try:
            found = await scored(scorer, [("", completion) for completion in completions])
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    lost = {n for n, (each, text) in enumerate(zip(found, completions, strict=True)) if each.reward != len(text)}
    assert lost == hung, f"lost and hung differ: {sorted(lost ^ hung)}"
    assert all(dict(found[number].failures) == {"hanging:score": "timed_out"} for number in lost)
    return len(lost)


def measure(*, quick: bool) -> CaseResult:
    """Check the values, time both by turns, and let functions hang."""
    pairs, expected = texts()
    num_rounds, num_episodes, num_hung = (1, 128, 4) if quick else (5, 512, 16)
    rates: dict[str, list[float]] = {"library": [], "ours": []}
    for _ in range(num_rounds):
        for name, (rate, values) in (("library", library_rate(pairs)), ("ours", asyncio.run(our_rate(pairs)))):
            assert values == expected, (
                name,
                [n for n, (a, b) in enumerate(zip(values, expected, strict=True)) if a != b],
            )
            rates[name].append(rate)
    library, ours = statistics.median(rates["library"]), statistics.median(rates["ours"])
    lost = asyncio.run(lost_episodes(num_episodes, num_hung))
    results: dict[str, Any] = {
        "rates_per_s": {name: [round(rate, 1) for rate in found] for name, found in rates.items()},
        "share_of_library": round(ours / library, 3),
    }
    return CaseResult(
        figures=(
            Figure(
                name="rewards_per_s_math_verify",
                value=ours,
                unit="1/s",
                op=">=",
                target=round(LEAST_SHARE * library, 4),
            ),
            Figure(name="hung_reward_lost_episodes", value=lost, unit="episodes", op="==", target=num_hung),
        ),
        config={
            "texts": len(pairs),
            "processes": NUM_PROCESSES,
            "under_way": UNDER_WAY,
            "episodes": num_episodes,
            "hung": num_hung,
            "timeout_s": HANG_S,
        },
        results=results,
    )
