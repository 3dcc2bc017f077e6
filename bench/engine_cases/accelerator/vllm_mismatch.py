"""Compares log-probabilities of what vLLM sampled in bfloat16 with the trainer's, on one device after the other.

It records the mean and largest difference in nats and the KL in nats a token, by how the trainer scores
(bench/engine_cases/mismatch.py). Differences depend on the weights: `--checkpoint DIR` takes those of a trained model
in place of random ones. Prompts are random tokens in either case. The last line is one JSON object.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench.engine_cases.accelerator.record import at_most, device_of, parser_of, print_record, run_again_as_command
from bench.engine_cases.accelerator.shapes import random_model
from bench.engine_cases.accelerator.vllm_start import give, published, random_requests, running
from bench.engine_cases.engine_load import sampled
from bench.engine_cases.mismatch import compared
from trainer.data.pretrained import load_weights

FREED_S = 60.0
"""Seconds that vLLM's processes get to leave the GPU after they have ended. Chosen by hand."""


def main() -> int:
    """Run the measurement and print its JSON line."""
    parser = parser_of("vllm_mismatch", __doc__)
    parser.add_argument("--checkpoint", type=Path, help="checkpoint directory in place of random weights of --shape")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    arguments = parser.parse_args()
    device = device_of(arguments)
    torch.set_num_threads(1 if device.type == "cpu" else torch.get_num_threads())
    drawn = asyncio.run(_sampled(arguments, device))
    _wait_for_memory(device)
    results = compared(_model(arguments, device), drawn)
    results["sampled_tokens_per_s"] = drawn["tokens_per_s"]
    reach = [
        at_most("mismatch_kl", results["trainer"]["kl"], 1e-3, "nats"),
        at_most("mismatch_mean_nats", results["trainer"]["mean_nats"], 0.01, "nats"),
    ]
    print_record("vllm_mismatch", arguments, device, results, reach)
    return 0


async def _sampled(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    model = _model(arguments, device)
    config, state = model.config, published(model).state
    del model
    if device.type == "cuda":
        torch.cuda.empty_cache()
    make = random_requests(config.vocab_size, arguments.prompt_tokens, arguments.new_tokens)
    async with running(
        config,
        device,
        num_slots=arguments.requests,
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens,
    ) as vllm:
        await give(vllm.engine, state)
        return await sampled(vllm.engine, make(arguments.requests, "sample"))


def _model(arguments: argparse.Namespace, device: torch.device) -> Any:
    # Random weights have a fixed seed: the model is made twice, and need not lie beside vLLM meanwhile.
    if arguments.checkpoint is None:
        return random_model(arguments.shape, device, torch.float32)
    return load_weights(arguments.checkpoint).to(device)


def _wait_for_memory(device: torch.device) -> None:
    if device.type != "cuda":
        return
    deadline_s = time.perf_counter() + FREED_S
    while torch.cuda.mem_get_info(device)[0] < 0.5 * torch.cuda.mem_get_info(device)[1]:
        if time.perf_counter() > deadline_s:
            sys.exit("vLLM has ended, but less than half of the GPU's memory is free")
        time.sleep(0.2)


if __name__ == "__main__":
    run_again_as_command("vllm_mismatch")
