"""Pools of real reward processes, and functions of a user's own that a test writes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from periplus.environment.environment import EXACT, Item
from periplus.environment.rewards.completions import ScoredText
from periplus.job.reward_section import RewardSection
from rollout_worker.rewards.building import RewardPlace, build_scorer
from rollout_worker.rewards.scorer import RewardScorer

T = TypeVar("T")


class Answered:
    """Problems with these answers; the verifier compares with them."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers

    def __len__(self) -> int:
        return len(self.answers)

    def item(self, index: int) -> Item:
        return Item(index=index, prompt=f"problem {index}", answer=self.answers[index], columns={"row": index})

    def score(self, index: int, completion: str) -> float:
        return EXACT if completion == self.answers[index] else 0.0


def text(completion: str, answer: str = "", **rest: Any) -> ScoredText:
    return ScoredText(prompt="p", completion=completion, answer=answer, num_tokens=len(completion.split()), **rest)


def reward(*functions: dict[str, Any], **rest: Any) -> RewardSection:
    """Return the section of a job file with these functions."""
    return RewardSection.model_validate_json(json.dumps({"functions": list(functions), **rest}))


@asynccontextmanager
async def scoring(
    section: RewardSection, *answers: str, code_folder: Path | None = None, **place: Any
) -> AsyncIterator[RewardScorer]:
    """Run a scorer's processes. The problems have these answers."""
    built = build_scorer(section, Answered(*answers), asyncio.Lock(), RewardPlace(code_folder=code_folder, **place))
    assert isinstance(built, RewardScorer)
    running = asyncio.create_task(built.run())
    try:
        yield built
        assert not running.done(), running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def play(scene: Callable[[], Awaitable[T]], *, timeout_s: float = 60) -> T:
    async def run() -> T:
        async with asyncio.timeout(timeout_s):
            return await scene()

    return asyncio.run(run())


async def scores(scorer: RewardScorer, item: Item, completions: Sequence[str]) -> list[Any]:
    """Return the score, or the error, of each completion, all asked for at once."""
    asked = (scorer.score(item, each, num_tokens=len(each.split())) for each in completions)
    return await asyncio.gather(*asked, return_exceptions=True)
