"""Measures one engine, as a program of its own: each engine runs in the environment that has it.

`pause` keeps every slot busy with long completions and gives the engine new weights again and again; each time one
percent of the elements have changed. `samples` draws completions with one version of the weights, for the comparison
with the trainer's log-probabilities. Both print one JSON line.

It is started with `python -c "from bench.engine_cases import engine_program; engine_program.main()"`, not with `-m`:
vLLM's workers import a program that was started with `-m` again, and with this one numba. Beside numba, vLLM 0.32 does
not start on CPUs.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from bench.engine_cases.models import ENVIRONMENT
from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.encoder import encode
from periplus.codec.weights.layout import layout_of
from periplus.environment import gym_tasks
from periplus.environment.job_environment import encode_prompt
from periplus.job.job_file import JobFile, resolve
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.weight_state import Tensor, WeightState, read_safetensors
from rollout_worker.engines.bundle import build_engine
from rollout_worker.engines.engine import ChangedElements, Engine, OnSwap, SampleRequest, WholeState

CHANGED_SHARE = 0.01
"""Share of the elements that change from one version to the next."""

NUM_PROBLEMS = 256
"""Problems that prompts are taken from."""


def main() -> int:
    """Run one measurement and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["pause", "samples"])
    parser.add_argument("--engine", choices=["torch", "vllm"], required=True)
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--model", type=Path, required=True, help="checkpoint directory; its weights are rounded")
    parser.add_argument("--requests", type=int, default=32, help="requests under way, or completions to sample")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--on-swap", choices=[str(mode) for mode in OnSwap], default="keep_kv")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(json.dumps(asyncio.run(_measure(arguments))))
    return 0


async def _measure(arguments: argparse.Namespace) -> Mapping[str, Any]:
    state = rounded_state(arguments.model)
    job = resolve(
        JobFile.model_validate_json(
            json.dumps(
                {
                    "name": "engines",
                    "model": {"path": str(arguments.model)},
                    "environment": ENVIRONMENT,
                    "sampling": {"prompt_tokens": 16, "max_new_tokens": arguments.new_tokens},
                    "engine": {
                        "name": arguments.engine,
                        "dtype": arguments.dtype,
                        "on_swap": arguments.on_swap,
                        "max_requests": min(arguments.requests, 64),
                    },
                }
            )
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        for file in arguments.model.iterdir():
            if file.suffix == ".json":
                (Path(folder) / file.name).write_bytes(file.read_bytes())
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        engine = await build_engine(Path(folder), tokenizer, job)
        try:
            await engine.swap(WholeState(layout=layout_of(state), state=state), Policy(0, 0), OnSwap.DRAIN)
            assert await engine.digest() == state_digest(state), "the engine holds other weights"
            if arguments.what == "samples":
                return await samples(engine, tokenizer, arguments)
            return await pauses(engine, tokenizer, state, arguments)
        finally:
            await engine.close()


def rounded_state(model: Path) -> WeightState:
    """Return the checkpoint's weights in bfloat16, as a version is published."""
    found: dict[str, Tensor] = {}
    for name, tensor in read_safetensors(model).items():
        array = torch.from_numpy(tensor.data.copy()).view(torch.float32)
        found[name] = Tensor("BF16", tensor.shape, array.to(torch.bfloat16).view(torch.uint8).numpy())
    return found


def requests(tokenizer: Any, num: int, new_tokens: int, prefix: str) -> list[SampleRequest]:
    """Return requests in groups of 8 on the benchmark's problems."""
    tasks = gym_tasks.load(ENVIRONMENT["name"], ENVIRONMENT["config"], 0, NUM_PROBLEMS)
    return [
        SampleRequest(
            request_id=f"{prefix}/{index}",
            prompt_ids=encode_prompt(tokenizer, tasks.item(index // 8 % NUM_PROBLEMS).prompt),
            seed=0,
            group=index // 8,
            sample=index % 8,
            temperature=1.0,
            max_new_tokens=new_tokens,
            greedy=False,
        )
        for index in range(num)
    ]


async def samples(engine: Engine, tokenizer: Any, arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Sample completions with one version, and return prompts, tokens and log-probabilities."""
    asked = requests(tokenizer, arguments.requests, arguments.new_tokens, "sample")
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
    engine: Engine, tokenizer: Any, state: WeightState, arguments: argparse.Namespace
) -> Mapping[str, Any]:
    """Give the engine new weights while all slots are busy, and return the pauses."""
    on_swap = OnSwap(arguments.on_swap)
    rng = np.random.default_rng(0)
    changes = []
    for _ in range(arguments.swaps):
        after = changed(state, rng)
        changes.append((delta(state, after), state_digest(after)))
        state = after
    filler = asyncio.ensure_future(_keep_busy(engine, tokenizer, arguments))
    reports, quiet_gaps_s = [], []
    try:
        await asyncio.sleep(2.0)
        for number, (change, _) in enumerate(changes):
            reports.append(await engine.swap(change, Policy(0, number + 1), on_swap))
            await asyncio.sleep(0.2)
        assert await engine.digest() == changes[-1][1], "the engine holds other weights than the last version"
    finally:
        filler.cancel()
    # What a gap is without any swap, on the same machine and load.
    asked = requests(tokenizer, arguments.requests, arguments.new_tokens, "quiet")
    quiet_gaps_s = [each.longest_gap_s for each in await asyncio.gather(*(engine.submit(one) for one in asked))]
    return {
        "pause_s": [report.pause_s for report in reports],
        "write_s": [report.write_s for report in reports],
        "median_s": statistics.median(report.pause_s for report in reports),
        "longest_s": max(report.pause_s for report in reports),
        "gap_without_swap_s": statistics.median(quiet_gaps_s),
    }


async def _keep_busy(engine: Engine, tokenizer: Any, arguments: argparse.Namespace) -> None:
    # As soon as a completion ends, the next one begins.
    async def one_after_another(line: int) -> None:
        for number in range(1_000_000):
            (one,) = requests(tokenizer, 1, arguments.new_tokens, f"{line}-{number}")
            await engine.submit(one)

    async with asyncio.TaskGroup() as tasks:
        for line in range(arguments.requests):
            tasks.create_task(one_after_another(line))


def changed(state: WeightState, rng: np.random.Generator) -> WeightState:
    """Return the state with `CHANGED_SHARE` of its elements one unit in the last place higher or lower."""
    found = {}
    for name, each in state.items():
        bits = each.data.view(np.uint16).copy()
        bits[rng.random(bits.size) < CHANGED_SHARE] ^= 1
        found[name] = Tensor(each.dtype, each.shape, bits.view(np.uint8))
    return found


def delta(before: WeightState, after: WeightState) -> ChangedElements:
    """Return the change as a worker has it after it decoded a publication."""
    decoder = Decoder(before, max_content_bytes=sum(each.data.nbytes for each in after.values()))
    for part in encode(before, after):
        decoder.feed(part)
    return ChangedElements(staged=(decoder.staged(),))
