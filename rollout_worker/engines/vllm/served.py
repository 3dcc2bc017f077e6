"""Builds the engine of a job that names vLLM servers: one engine a server, and several of them as one."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from periplus.errors import ConfigError, Unreachable
from periplus.process import telemetry
from rollout_worker.engines.engine import Engine, OnSwap
from rollout_worker.engines.replicated_engine import ReplicatedEngine
from rollout_worker.engines.request_limits import RequestLimits
from rollout_worker.engines.vllm.http_backend import HttpBackend
from rollout_worker.engines.vllm.vllm_engine import VllmEngine, check_on_swap

log = logging.getLogger(__name__)


async def served_engine(
    urls: Sequence[str],
    *,
    limits: RequestLimits,
    end_ids: Sequence[int],
    num_slots: int,
    on_swap: OnSwap,
    api_key: str | None = None,
) -> Engine:
    """Connect to the servers that answer, and return an engine with `num_slots` requests at once on each of them.

    `on_swap` is what its swaps will be asked for. Raises: ConfigError if a server cannot serve this job, Unreachable if
    none answers.
    """
    max_tokens = limits.prompt_tokens + limits.max_new_tokens
    found = await asyncio.gather(
        *(HttpBackend.connect(url, api_key=api_key, max_tokens=max_tokens) for url in urls), return_exceptions=True
    )
    backends = {url: each for url, each in zip(urls, found, strict=True) if isinstance(each, HttpBackend)}
    errors = [each for each in found if isinstance(each, BaseException)]
    unfit = [each for each in errors if not isinstance(each, Unreachable)]
    if not backends or unfit:
        await asyncio.gather(*(backend.close() for backend in backends.values()))
        raise (unfit or errors)[0]
    for error in errors:
        telemetry.event(log, logging.WARNING, "engine_server_does_not_answer", error=str(error))
    try:
        _check(backends, on_swap)
    except ConfigError:
        await asyncio.gather(*(backend.close() for backend in backends.values()))
        raise
    engines = {
        url: VllmEngine(
            backend=backend,
            limits=limits,
            end_ids=end_ids,
            num_slots=num_slots,
            computes_in_bfloat16=backend.computes_in_bfloat16,
        )
        for url, backend in backends.items()
    }
    return next(iter(engines.values())) if len(engines) == 1 else ReplicatedEngine(engines)


def _check(backends: Mapping[str, HttpBackend], on_swap: OnSwap) -> None:
    for url, backend in backends.items():
        check_on_swap(
            on_swap, backend, whose=f"the vLLM server at {url}", remedy="start it with --enable-scale-out (vLLM 0.32)"
        )
    if len({backend.reports_labels for backend in backends.values()}) > 1:
        raise ConfigError("some servers of engine.url have --enable-scale-out and some do not; start them alike")
