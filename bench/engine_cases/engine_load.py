"""Keeps an engine busy, and measures what its completions are and how long new weights interrupt them.

Nothing here knows which engine it is, or where prompts come from: requests are made by a function of their number and
of a prefix that keeps their ids apart.
"""

import asyncio
import contextlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from periplus.values.policy import Policy
from rollout_worker.engines.engine import ChangedElements, Engine, OnSwap, SampleRequest

MakeRequests = Callable[[int, str], list[SampleRequest]]
"""Function that returns so many requests, whose ids begin with the prefix."""

FILL_S = 2.0
"""Seconds that a load gets to fill the engine before the first swap, unless it is said otherwise. Chosen by hand."""

BETWEEN_SWAPS_S = 0.2
"""Seconds between two swaps, in which completions go on. Chosen by hand."""


async def sampled(engine: Engine, asked: Sequence[SampleRequest]) -> dict[str, Any]:
    """Sample completions with one version, and return prompts, tokens, log-probabilities and tokens a second."""
    started_s = time.perf_counter()
    found = await asyncio.gather(*(engine.submit(one) for one in asked))
    spent_s = time.perf_counter() - started_s
    return {
        "prompts": [one.prompt_ids for one in asked],
        "tokens": [each.token_ids for each in found],
        "logprobs": [each.logprobs for each in found],
        "tokens_per_s": sum(len(each.token_ids) for each in found) / spent_s,
    }


async def pauses(
    engine: Engine,
    changes: Sequence[tuple[ChangedElements, bytes]],
    make: MakeRequests,
    *,
    num_requests: int,
    on_swap: OnSwap,
    fill_s: float = FILL_S,
) -> dict[str, Any]:
    """Give a busy engine new weights again and again, and return the pauses in seconds.

    `changes` are pairs of a change and the digest of the state after it. The first swap comes after `fill_s` seconds,
    in which the requests should all have begun. `gap_without_swap_s` is the longest gap
    between two tokens of a completion without new weights, on the same machine and load: the median over completions.
    `exposed_p95_s` is the 95th percentile of the pauses, less that gap.
    """
    filler = asyncio.ensure_future(_keep_busy(engine, make, num_requests))
    reports = []
    try:
        await asyncio.sleep(fill_s)
        for number, (change, _) in enumerate(changes):
            assert not filler.done(), filler.exception()
            reports.append(await engine.swap(change, Policy(0, number + 1), on_swap))
            await asyncio.sleep(BETWEEN_SWAPS_S)
        assert await engine.digest() == changes[-1][1], "the engine holds other weights than the last version"
    finally:
        filler.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await filler
    quiet = await asyncio.gather(*(engine.submit(one) for one in make(num_requests, "quiet")))
    gap_s = statistics.median(each.longest_gap_s for each in quiet)
    by_length = sorted(report.pause_s for report in reports)
    return {
        "pause_s": [report.pause_s for report in reports],
        "write_s": [report.write_s for report in reports],
        "median_s": statistics.median(report.pause_s for report in reports),
        "longest_s": max(report.pause_s for report in reports),
        "gap_without_swap_s": gap_s,
        "exposed_p95_s": by_length[math.ceil(0.95 * len(by_length)) - 1] - gap_s,
    }


async def _keep_busy(engine: Engine, make: MakeRequests, num: int) -> None:
    # As soon as a completion ends, the next one begins.
    async def one_after_another(line: int) -> None:
        for number in range(1_000_000):
            (one,) = make(1, f"{line}-{number}")
            await engine.submit(one)

    async with asyncio.TaskGroup() as tasks:
        for line in range(num):
            tasks.create_task(one_after_another(line))
