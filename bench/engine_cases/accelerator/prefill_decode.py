"""Measures tables of vLLM's prefill and decode rates over batch and length, with random weights of a real shape.

A row of `prefill` is a batch of prompts of one length, from the first request to the last first token. A row of
`decode` is a batch of sequences after prompts of one length: the time in which each of them gets some more tokens while
all are under way. Both have tokens a second, and the seconds of one pass.

Each row also has the columns of Helix's table of layer times, which the planner's calibration reads
(bench/planner_cases/calibration/serving_tables.py): `phase`, `batch_tokens` and `layer_time_ms`. A layer's time is that
of a pass divided by the number of layers, so it contains its share of embedding, head, sampling and the host, which
Helix's does not. No part of the planner reads tables that this project measured: its calibration is made from published
ones, whose models and machines it knows by name. The last line is one JSON object.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bench.engine_cases.accelerator.record import device_of, parser_of, print_record, run_again_as_command
from bench.engine_cases.accelerator.shapes import config_of
from bench.engine_cases.accelerator.vllm_start import CPU_CACHE_BYTES, GPU_SHARE, running
from rollout_worker.engines.vllm.backend import Sampling

if TYPE_CHECKING:
    from rollout_worker.engines.vllm.async_llm_backend import AsyncLlmBackend

CACHE_SHARE = 0.8
"""Share of the memory for keys and values that a batch may need by our own count. The rest is for what vLLM rounds up
and for its scratch memory. A batch that does not fit is computed in turns, and its rate would be another one."""

ROOM_TOKENS = 512
"""Tokens that the first sequence of a batch may get while the last prompt of it is still being computed."""


def main() -> int:
    """Run the measurement and print its JSON line."""
    parser = parser_of("prefill_decode", __doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048, 8192], help="tokens of each prompt")
    parser.add_argument("--decode-tokens", type=int, default=64, help="tokens of each sequence that are timed")
    parser.add_argument("--max-prefill-tokens", type=int, default=131_072, help="tokens of the largest batch")
    parser.add_argument("--repeats", type=int, default=3, help="passes of a prefill, of which the median counts")
    arguments = parser.parse_args()
    device = device_of(arguments)
    torch.set_num_threads(1 if device.type == "cpu" else torch.get_num_threads())
    print_record("prefill_decode", arguments, device, asyncio.run(measured(arguments, device)))
    return 0


async def measured(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return the two tables of one shape, and the batches that were left out because they do not fit."""
    config = config_of(arguments.shape)
    new_tokens = arguments.decode_tokens + ROOM_TOKENS
    found: dict[str, Any] = {"model": arguments.shape, "layers": config.num_hidden_layers, "prefill": [], "decode": []}
    found["left_out"] = []
    cache_tokens = _cache_bytes(config, device) // _token_bytes(config)
    async with running(
        config,
        device,
        num_slots=max(arguments.batches),
        prompt_tokens=max(arguments.lengths),
        new_tokens=new_tokens,
    ) as vllm:
        prompts = _Prompts(config.vocab_size)
        await _decode_s(vllm.backend, prompts.batch(max(arguments.batches), min(arguments.lengths)), 8, new_tokens)
        for length in arguments.lengths:
            for batch in arguments.batches:
                if batch * length > arguments.max_prefill_tokens or batch * (length + new_tokens) > cache_tokens:
                    found["left_out"].append({"batch": batch, "length": length})
                    continue
                passes_s = [
                    await _prefill_s(vllm.backend, prompts.batch(batch, length)) for _ in range(arguments.repeats)
                ]
                found["prefill"].append(
                    _row("prompt", batch, length, batch * length, statistics.median(passes_s), found)
                )
                step_s = await _decode_s(
                    vllm.backend, prompts.batch(batch, length), arguments.decode_tokens, new_tokens
                )
                found["decode"].append(_row("decode", batch, length, batch, step_s, found))
    return found


def _row(phase: str, batch: int, length: int, tokens: int, pass_s: float, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "phase": phase,
        "batch": batch,
        "length": length,
        "tokens_per_s": tokens / pass_s,
        "pass_s": pass_s,
        "batch_tokens": tokens,
        "layer_time_ms": 1e3 * pass_s / found["layers"],
    }


class _Prompts:
    """Random prompts, none of which shares a prefix with another, so that no keys are found in the cache."""

    def __init__(self, vocab_size: int) -> None:
        self._rng = np.random.default_rng(0)
        self._vocab_size = vocab_size
        self._num_batches = 0

    def batch(self, num: int, length: int) -> list[tuple[str, Sequence[int]]]:
        """Return so many pairs of an id and a prompt of so many tokens."""
        self._num_batches += 1
        ids = self._rng.integers(3, self._vocab_size, (num, length)).tolist()
        return [(f"{self._num_batches}/{index}", row) for index, row in enumerate(ids)]


async def _prefill_s(backend: "AsyncLlmBackend", prompts: Sequence[tuple[str, Sequence[int]]]) -> float:
    """Return the seconds until each prompt has its first token."""

    async def first_token(name: str, ids: Sequence[int]) -> None:
        async for _ in backend.generate(name, ids, _sampling(1)):
            pass

    began_s = time.perf_counter()
    await asyncio.gather(*(first_token(name, ids) for name, ids in prompts))
    return time.perf_counter() - began_s


async def _decode_s(
    backend: "AsyncLlmBackend", prompts: Sequence[tuple[str, Sequence[int]]], timed_tokens: int, new_tokens: int
) -> float:
    """Return the seconds of one decoding step while all sequences are under way."""
    counts = dict.fromkeys((name for name, _ in prompts), 0)
    progress = asyncio.Condition()

    async def decode(name: str, ids: Sequence[int]) -> None:
        try:
            async for chunk in backend.generate(name, ids, _sampling(new_tokens)):
                async with progress:
                    counts[name] += len(chunk.token_ids)
                    progress.notify_all()
        except Exception:
            async with progress:
                progress.notify_all()
            raise
        raise RuntimeError(f"{name} ended after {counts[name]} tokens, before others had theirs; raise ROOM_TOKENS")

    tasks = [asyncio.ensure_future(decode(name, ids)) for name, ids in prompts]

    def have(num: int) -> bool:
        for task in tasks:
            if task.done():
                task.result()
        return sum(counts.values()) >= num and all(counts.values())

    try:
        async with progress:
            await progress.wait_for(lambda: have(len(prompts)))
        first, began_s = sum(counts.values()), time.perf_counter()
        async with progress:
            await progress.wait_for(lambda: have(first + timed_tokens * len(prompts)))
        ended_s, last = time.perf_counter(), sum(counts.values())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return (ended_s - began_s) * len(prompts) / (last - first)


def _sampling(num_tokens: int) -> Sampling:
    return Sampling(temperature=1.0, seed=0, max_tokens=num_tokens, stop_ids=(), cache_salt="")


def _cache_bytes(config: Any, device: torch.device) -> int:
    # What vLLM will have for keys and values, by our own count: its share of the memory without the weights.
    if device.type == "cpu":
        return CPU_CACHE_BYTES
    matrices = 4 * config.hidden_size * config.num_attention_heads * config.head_dim
    layer = matrices + 3 * config.hidden_size * config.intermediate_size
    weights = 2 * (config.num_hidden_layers * layer + 2 * config.vocab_size * config.hidden_size)
    return int(CACHE_SHARE * (GPU_SHARE * torch.cuda.get_device_properties(device).total_memory - weights))


def _token_bytes(config: Any) -> int:
    # Keys and values of one token in bfloat16.
    return int(2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim)


if __name__ == "__main__":
    run_again_as_command("prefill_decode")
