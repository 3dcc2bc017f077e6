"""Measures how long new weights interrupt a busy vLLM: the longest gap between two tokens of a completion.

So many sequences are under way all the time, and each swap changes one percent of the elements. With `keep_kv` they
keep their keys and values; with `reprefill` these are computed again, and the gap includes that. Times are of writing,
of the pause, and of the longest gap without any swap on the same load. The last line is one JSON object.
"""

import argparse
import asyncio
import os
import statistics
from typing import Any

import numpy as np
import torch

from bench.engine_cases.accelerator.record import at_most, device_of, parser_of, print_record, run_again_as_command
from bench.engine_cases.accelerator.shapes import config_of
from bench.engine_cases.accelerator.vllm_start import (
    give,
    random_published,
    random_requests,
    running,
    vocab_size_of,
)
from bench.engine_cases.engine_load import FILL_S, pauses
from bench.engine_cases.weight_changes import changed, delta
from periplus.values.digest import state_digest
from rollout_worker.engines.engine import OnSwap

CHANGED_SHARE = 0.01
"""Share of the elements that change in a swap."""

MODES = (OnSwap.KEEP_KV, OnSwap.REPREFILL)
"""What becomes of completions under way. Draining is left out: it waits for completions, not for the device."""


def main() -> int:
    """Run the measurement and print its JSON line."""
    parser = parser_of("vllm_pause", __doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=1024)
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--fill-s", type=float, default=FILL_S, help="seconds for all prompts before the first swap")
    arguments = parser.parse_args()
    device = device_of(arguments)
    torch.set_num_threads(1 if device.type == "cpu" else torch.get_num_threads())
    rows = asyncio.run(measured(arguments, device))
    kept = max(row["exposed_p95_s"] for row in rows if row["on_swap"] == OnSwap.KEEP_KV)
    print_record("vllm_pause", arguments, device, {"pauses": rows}, [at_most("exposed_pause_s", kept, 0.1, "s")])
    return 0


async def measured(arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Return a row of figures for each number of sequences and each mode."""
    state = random_published(arguments.shape, device).state
    after = changed(state, np.random.default_rng(0), CHANGED_SHARE)
    threads = os.cpu_count() or 1
    # There and back, again and again: every swap writes as many elements.
    turns = [
        (delta(state, after, threads), state_digest(after)),
        (delta(after, state, threads), state_digest(state)),
    ]
    changes = [turns[number % 2] for number in range(2 * (arguments.swaps // 2))]
    make = random_requests(vocab_size_of(arguments.shape), arguments.prompt_tokens, arguments.new_tokens)
    rows = []
    async with running(
        config_of(arguments.shape),
        device,
        num_slots=max(arguments.sequences),
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens,
    ) as vllm:
        await give(vllm.engine, state)
        await asyncio.gather(*(vllm.engine.submit(one) for one in make(max(arguments.sequences), "warm")))
        for num in arguments.sequences:
            for on_swap in MODES:
                found = await pauses(
                    vllm.engine, changes, make, num_requests=num, on_swap=on_swap, fill_s=arguments.fill_s
                )
                rows.append(
                    {
                        "sequences": num,
                        "on_swap": str(on_swap),
                        "pause_s": found["median_s"],
                        "longest_pause_s": found["longest_s"],
                        "exposed_p95_s": found["exposed_p95_s"],
                        "write_s": statistics.median(found["write_s"]),
                        "gap_without_swap_s": found["gap_without_swap_s"],
                    }
                )
    return rows


if __name__ == "__main__":
    run_again_as_command("vllm_pause")
