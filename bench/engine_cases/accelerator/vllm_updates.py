"""Measures sparse updates of a vLLM in place, with CUDA graphs on a GPU: writing, reading back as a hash, and probing.

For each share of changed elements it records
- seconds of writing: transfer to vLLM's process and writes into its tensors; and of the whole swap;
- seconds of the digest of the engine's own tensors under their checkpoint names, which must be the published one;
- seconds of the probe, which are the log-probabilities of 8 x 32 tokens;
- `decode_vs_prefill_nats`: the mean difference between log-probabilities of greedy tokens as they were decoded and as a
  prefill computes them again. Decoding replays captured graphs, a prefill of that length need not.

Then the whole state is replaced by one with other rows. A graph that still read old weights would show there, which a
change in the last bits cannot. The engine is idle meanwhile; vllm_pause.py has the pause of a busy one. The random
weights' first probe is held against the trainer's. The last line is one JSON object.
"""

import argparse
import asyncio
import os
import statistics
import time
from typing import Any

import numpy as np
import torch

from bench.engine_cases.accelerator.record import at_most, device_of, parser_of, print_record, run_again_as_command
from bench.engine_cases.accelerator.shapes import config_of
from bench.engine_cases.accelerator.vllm_start import (
    PROBE_SEED,
    Published,
    RunningEngine,
    give,
    random_published,
    random_requests,
    running,
    vocab_size_of,
)
from bench.engine_cases.weight_changes import changed, delta
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.probe_prompts import PROBE_LIMITS_BF16, probe_difference, probe_prompts
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.engine import Engine, OnSwap

CHECKED_TOKENS = 32
"""Tokens of each prompt that is decoded for the comparison with a prefill, and of its completion."""

CHECKED_SEQUENCES = 8
"""Completions of that comparison."""


def main() -> int:
    """Run the measurement and print its JSON line."""
    parser = parser_of("vllm_updates", __doc__)
    parser.add_argument("--percents", type=float, nargs="+", default=[0.2, 0.5, 1.0, 2.0, 5.0])
    parser.add_argument("--repeats", type=int, default=5, help="swaps of each change, of which the median counts")
    parser.add_argument("--slots", type=int, default=256, help="requests for which vLLM captures graphs")
    arguments = parser.parse_args()
    device = device_of(arguments)
    torch.set_num_threads(1 if device.type == "cpu" else torch.get_num_threads())
    results = asyncio.run(measured(arguments, device))
    nats = [row["decode_vs_prefill_nats"] for row in results["updates"]]
    reach = [
        at_most("probe_mean_nats", results["probe_mean_nats"], PROBE_LIMITS_BF16.first_nats, "nats"),
        at_most(
            "decode_vs_prefill_nats",
            max(*nats, results["whole_state"]["decode_vs_prefill_nats"]),
            PROBE_LIMITS_BF16.first_nats,
            "nats",
        ),
    ]
    print_record("vllm_updates", arguments, device, results, reach)
    return 0


async def measured(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return the figures of one shape."""
    weights = random_published(arguments.shape, device)
    begun_s = time.perf_counter()
    async with running(
        config_of(arguments.shape), device, num_slots=arguments.slots, prompt_tokens=128, new_tokens=128
    ) as vllm:
        return await _updates(vllm, weights, arguments, time.perf_counter() - begun_s)


async def _updates(
    vllm: RunningEngine, weights: Published, arguments: argparse.Namespace, start_s: float
) -> dict[str, Any]:
    engine, vocab_size = vllm.engine, vocab_size_of(arguments.shape)
    prompts = probe_prompts(PROBE_SEED, vocab_size)
    state = weights.state
    first_s = await give(engine, state)
    found = await engine.logprobs(prompts)
    probe = probe_difference(weights.probe_logprobs.reshape(-1).tolist(), found.reshape(-1).tolist())
    await decode_vs_prefill_nats(engine, vocab_size, "warm")  # first use of kernels and graphs
    rng, rows = np.random.default_rng(0), []
    for number, percent in enumerate(arguments.percents):
        before, state = state, changed(state, rng, percent / 100)
        change = delta(before, state, num_threads=os.cpu_count() or 1)
        write_s, swap_s = [], []
        for _ in range(arguments.repeats):  # values are absolute: writing them again costs the same
            began_s = time.perf_counter()
            report = await engine.swap(change, Policy(0, number + 1), OnSwap.DRAIN)
            swap_s.append(time.perf_counter() - began_s)
            write_s.append(report.write_s)
        hash_s, digest = await _timed_digest(engine)
        assert digest == state_digest(state), f"after {percent} % the engine holds other weights than were published"
        began_s = time.perf_counter()
        await engine.logprobs(prompts)
        rows.append(
            {
                "changed_percent": percent,
                "changed_elements": sum(span.num_changed for staged in change.staged for span in staged.spans),
                "write_s": statistics.median(write_s),
                "swap_s": statistics.median(swap_s),
                "hash_s": hash_s,
                "probe_s": time.perf_counter() - began_s,
                "decode_vs_prefill_nats": await decode_vs_prefill_nats(engine, vocab_size, str(percent)),
            }
        )
    whole_s = await give(engine, rolled(state), version=len(rows) + 1)
    return {
        "state_bytes": sum(each.data.nbytes for each in state.values()),
        "cuda_graphs": arguments.device != "cpu",
        "start_s": start_s,
        "first_state_write_s": first_s,
        "probe_mean_nats": probe.mean,
        "probe_spread_nats": probe.spread,
        "updates": rows,
        "whole_state": {
            "write_s": whole_s,
            "decode_vs_prefill_nats": await decode_vs_prefill_nats(engine, vocab_size, "whole"),
        },
    }


async def _timed_digest(engine: Engine) -> tuple[float, bytes]:
    began_s = time.perf_counter()
    digest = await engine.digest()
    return time.perf_counter() - began_s, digest


async def decode_vs_prefill_nats(engine: Engine, vocab_size: int, prefix: str) -> float:
    """Return the mean difference between log-probabilities of greedy tokens, decoded and by a prefill, in nats."""
    make = random_requests(vocab_size, CHECKED_TOKENS, CHECKED_TOKENS, greedy=True)
    asked = make(CHECKED_SEQUENCES, f"check-{prefix}")
    decoded = await asyncio.gather(*(engine.submit(one) for one in asked))
    ids = np.array([(*one.prompt_ids, *done.token_ids) for one, done in zip(asked, decoded, strict=True)], np.int64)
    prefilled = (await engine.logprobs(ids))[:, CHECKED_TOKENS - 1 :]
    return float(np.abs(prefilled - np.array([done.logprobs for done in decoded], np.float32)).mean())


def rolled(state: WeightState) -> WeightState:
    """Return the state with the rows of each matrix moved by one: another function of the same size of weights."""
    found = {}
    for name, each in state.items():
        rows = each.data.reshape(each.shape[0], -1)
        found[name] = Tensor(each.dtype, each.shape, np.roll(rows, 1, axis=0).reshape(-1))
    return found


if __name__ == "__main__":
    run_again_as_command("vllm_updates")
