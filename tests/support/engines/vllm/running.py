"""A real vLLM for the tests of a module, and an event loop that lives as long."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from periplus import clock
from rollout_worker.engines.engine import Completion, SampleRequest
from rollout_worker.engines.request_limits import RequestLimits
from rollout_worker.engines.vllm.async_llm_backend import AsyncLlmBackend, VllmSettings
from rollout_worker.engines.vllm.vllm_engine import VllmEngine
from tests.support.engines.vllm.faulty_worker import NAME
from tests.support.engines.vllm.small_model import VOCAB, SmallModel

T = TypeVar("T")

NUM_SLOTS, PROMPT_TOKENS, MAX_NEW_TOKENS = 8, 16, 400
TICK_S = 0.05
NOTICED_S = 20.0
"""In which a process that died is noticed on a loaded machine: less than any deadline that would find it otherwise."""
LIMITS = RequestLimits(vocab_size=VOCAB, prompt_tokens=PROMPT_TOKENS, max_new_tokens=MAX_NEW_TOKENS)


@dataclass(frozen=True)
class RunningVllm:
    """An engine on the loop of `runner`. `run` awaits something on it.

    vLLM started in `start_s`. `longest_stall_s` is the longest time of it in which nothing else could run on the loop.
    """

    runner: asyncio.Runner
    backend: AsyncLlmBackend
    engine: VllmEngine
    model: SmallModel
    start_s: float
    longest_stall_s: float

    def run(self, work: Coroutine[Any, Any, T], limit_s: float = 60.0) -> T:
        async def limited() -> T:
            async with asyncio.timeout(limit_s):
                return await work

        return self.runner.run(limited())

    def call(self, method: str, *arguments: object) -> list[Any]:
        return self.run(self.backend._call(method, *arguments))


@contextmanager
def running_vllm(folder: Path, model: SmallModel, *, ranks: int = 1) -> Iterator[RunningVllm]:
    settings = VllmSettings(
        folder=model.save_config(folder),
        dtype="bfloat16",
        num_slots=NUM_SLOTS,
        max_tokens=PROMPT_TOKENS + MAX_NEW_TOKENS + 1,
        ranks=ranks,
        cache_bytes=1 << 27,
        eager=True,
        buffer_bytes=1 << 15,  # small, so that a change needs several loads
        extension=NAME,
    )
    with asyncio.Runner() as runner:
        began_s = clock.monotonic_s()
        backend, longest_stall_s = runner.run(watched(AsyncLlmBackend.start(settings)))
        start_s = clock.monotonic_s() - began_s
        engine = engine_of(backend)
        try:
            yield RunningVllm(runner, backend, engine, model, start_s, longest_stall_s)
        finally:
            runner.run(engine.close())


async def watched(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Await something. Return its result, and the longest time in seconds that it kept the loop from other work."""
    task, longest_s, last_s = asyncio.ensure_future(work), 0.0, clock.monotonic_s()
    while not task.done():
        await asyncio.wait((task,), timeout=TICK_S)
        now_s = clock.monotonic_s()
        longest_s, last_s = max(longest_s, now_s - last_s - TICK_S), now_s
    return task.result(), longest_s


def engine_of(backend: Any, *, end_ids: Sequence[int] = ()) -> VllmEngine:
    """Return an engine whose completions are as long as their requests say, unless there is an end token."""
    return VllmEngine(backend=backend, limits=LIMITS, end_ids=end_ids, num_slots=NUM_SLOTS, computes_in_bfloat16=True)


def request(
    group: int,
    sample: int = 0,
    *,
    max_new_tokens: int = 12,
    temperature: float = 1.0,
    greedy: bool = False,
    seed: int = 5,
) -> SampleRequest:
    """A request whose prompt is a function of its group."""
    prompt_ids = tuple(3 + (group * 7 + place * 5) % (VOCAB - 3) for place in range(4 + group % 8))
    return SampleRequest(
        request_id=f"{group}-{sample}",
        prompt_ids=prompt_ids,
        seed=seed,
        group=group,
        sample=sample,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        greedy=greedy,
    )


async def started(
    engine: VllmEngine, requests: Sequence[SampleRequest], num_tokens: int = 8
) -> list["asyncio.Task[Completion]"]:
    """Submit requests, and return their tasks when each of them has so many tokens, or has ended."""
    tasks = [asyncio.ensure_future(engine.submit(each)) for each in requests]
    await asyncio.sleep(0)

    def have_tokens() -> bool:
        return all(len(state.token_ids) >= num_tokens for state in engine._open.values())

    await engine._wait_until(have_tokens)
    return tasks
