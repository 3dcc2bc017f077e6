"""Measures a trainer and a vLLM that share one GPU: vLLM sleeps while the trainer takes a step, and wakes again.

It records the bytes that sleeping frees (vLLM's level 1: weights move to the host, keys and values are given up), the
seconds of sleeping and waking, and a training step in the freed memory. After waking, the digest of the engine's
tensors must be the published one, and a swap must still reach the tensors. Whether greedy tokens are those from before
is recorded.

vLLM does not sleep on a CPU: there the program says so and ends with exit code 1. The last line is one JSON object.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

from bench.engine_cases.accelerator.record import device_of, now_s, parser_of, print_record, run_again_as_command
from bench.engine_cases.accelerator.shapes import config_of, random_model
from bench.engine_cases.accelerator.training import learner_of, random_samples
from bench.engine_cases.accelerator.vllm_start import RunningEngine, give, published, random_requests, running
from bench.engine_cases.weight_changes import changed, delta
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from rollout_worker.engines.engine import Engine, OnSwap

CHECKED_SEQUENCES, CHECKED_TOKENS = 8, 32
"""Greedy completions that are compared across a sleep, and their tokens."""


def main() -> int:
    """Run the measurement and print its JSON line. Return exit code 1 on a device on which vLLM does not sleep."""
    parser = parser_of("sleep_wake", __doc__)
    parser.add_argument("--gpu-share", type=float, default=0.4, help="share of the memory that vLLM takes when awake")
    parser.add_argument("--samples", type=int, default=32, help="samples of the training step")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--cycles", type=int, default=3)
    arguments = parser.parse_args()
    device = device_of(arguments)
    if device.type == "cpu":
        sys.exit("vLLM sleeps on GPUs alone: on a CPU there is nothing to measure")
    print_record("sleep_wake", arguments, device, asyncio.run(measured(arguments, device)))
    return 0


async def measured(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return the figures of one shape."""
    config = config_of(arguments.shape)
    async with running(
        config,
        device,
        num_slots=64,
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens,
        gpu_share=arguments.gpu_share,
        can_sleep=True,
    ) as vllm:
        # vLLM is there first: when it starts, its share of the memory must be free.
        model = random_model(arguments.shape, device, torch.float32)
        state = published(model).state
        await give(vllm.engine, state)
        step = _Step(arguments, model, device)
        before = await _greedy(vllm.engine, config.vocab_size)
        # The first cycle makes the optimizer's moments and loads kernels: it is not counted.
        cycles = [await _cycle(vllm, step, device) for _ in range(1 + arguments.cycles)][1:]
        woken_digest = await vllm.engine.digest()
        assert woken_digest == state_digest(state), "vLLM woke with other weights than it had"
        after = await _greedy(vllm.engine, config.vocab_size)
        # The addresses that updates write to are still those of the model.
        next_state = changed(state, np.random.default_rng(0), 0.01)
        change = delta(state, next_state, num_threads=os.cpu_count() or 1)
        report = await vllm.engine.swap(change, Policy(0, 1), OnSwap.DRAIN)
        assert await vllm.engine.digest() == state_digest(next_state), (
            "an update after waking did not reach the tensors"
        )
    medians = {key: statistics.median(cycle[key] for cycle in cycles) for key in cycles[0]}
    return {**medians, "digest_equal": True, "greedy_equal": before == after, "write_after_wake_s": report.write_s}


class _Step:
    """Training steps of a model, each on new random samples."""

    def __init__(self, arguments: argparse.Namespace, model: Any, device: torch.device) -> None:
        self._arguments = arguments
        self._learner = learner_of(arguments, model)
        self._vocab_size = int(model.config.vocab_size)
        self._device = device
        self._rng = np.random.default_rng(0)
        self._version = 0

    def take(self) -> float:
        """Train one step, give unused memory back to the device, and return the seconds of the step."""
        samples = random_samples(self._arguments, self._vocab_size, self._rng)
        began_s = now_s(self._device)
        stepped = self._learner.step(samples, consumer=Policy(0, self._version), learning_rate=1e-6)
        assert stepped is not None
        spent_s = now_s(self._device) - began_s
        self._version += 1
        torch.cuda.empty_cache()  # vLLM needs it when it wakes
        return spent_s


async def _cycle(vllm: RunningEngine, step: _Step, device: torch.device) -> dict[str, float]:
    """Let vLLM sleep, train a step, wake vLLM, and return seconds and bytes."""
    awake_bytes = torch.cuda.mem_get_info(device)[0]
    began_s = time.perf_counter()
    await vllm.backend.suspend()
    sleep_s = time.perf_counter() - began_s
    asleep_bytes = torch.cuda.mem_get_info(device)[0]
    torch.cuda.reset_peak_memory_stats(device)
    step_s = step.take()
    peak_bytes = torch.cuda.max_memory_allocated(device)
    began_s = time.perf_counter()
    await vllm.backend.wake()
    return {
        "free_awake_bytes": awake_bytes,
        "free_asleep_bytes": asleep_bytes,
        "freed_bytes": asleep_bytes - awake_bytes,
        "sleep_s": sleep_s,
        "wake_s": time.perf_counter() - began_s,
        "step_asleep_s": step_s,
        "step_peak_bytes": peak_bytes,
    }


async def _greedy(engine: Engine, vocab_size: int) -> list[tuple[int, ...]]:
    asked = random_requests(vocab_size, CHECKED_TOKENS, CHECKED_TOKENS, greedy=True)(CHECKED_SEQUENCES, "greedy")
    return [done.token_ids for done in await asyncio.gather(*(engine.submit(one) for one in asked))]


if __name__ == "__main__":
    run_again_as_command("sleep_wake")
