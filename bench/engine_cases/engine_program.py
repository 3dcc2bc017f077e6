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
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from bench.engine_cases.engine_load import pauses, sampled
from bench.engine_cases.models import ENVIRONMENT, PROBE_SEED
from bench.engine_cases.weight_changes import changed, delta
from periplus.codec.weights.layout import layout_of
from periplus.environment import gym_tasks
from periplus.environment.prompts import PromptEncoder
from periplus.job.job_file import JobFile, resolve
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.probe_prompts import probe_prompts
from periplus.values.weight_state import Tensor, WeightState, read_safetensors
from rollout_worker.engines.bundle import build_engine
from rollout_worker.engines.engine import OnSwap, SampleRequest, WholeState

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
            make = partial(requests, tokenizer, arguments.new_tokens)
            if arguments.what == "samples":
                found = await sampled(engine, make(arguments.requests, "sample"))
                probe = await engine.logprobs(probe_prompts(PROBE_SEED, engine.vocab_size))
                return found | {"probe": probe.reshape(-1).tolist()}
            rng, changes = np.random.default_rng(0), []
            for _ in range(arguments.swaps):
                before, state = state, changed(state, rng, CHANGED_SHARE)
                changes.append((delta(before, state), state_digest(state)))
            return await pauses(
                engine, changes, make, num_requests=arguments.requests, on_swap=OnSwap(arguments.on_swap)
            )
        finally:
            await engine.close()


def rounded_state(model: Path) -> WeightState:
    """Return the checkpoint's weights in bfloat16, as a version is published."""
    found: dict[str, Tensor] = {}
    for name, tensor in read_safetensors(model).items():
        array = torch.from_numpy(tensor.data.copy()).view(torch.float32)
        found[name] = Tensor("BF16", tensor.shape, array.to(torch.bfloat16).view(torch.uint8).numpy())
    return found


def requests(tokenizer: Any, new_tokens: int, num: int, prefix: str) -> list[SampleRequest]:
    """Return requests in groups of 8 on the benchmark's problems."""
    encoder = PromptEncoder(tokenizer=tokenizer)
    tasks = gym_tasks.load(ENVIRONMENT["name"], ENVIRONMENT["config"], 0, NUM_PROBLEMS)
    return [
        SampleRequest(
            request_id=f"{prefix}/{index}",
            prompt_ids=encoder.encode(tasks.item(index // 8 % NUM_PROBLEMS)),
            seed=0,
            group=index // 8,
            sample=index % 8,
            temperature=1.0,
            max_new_tokens=new_tokens,
            greedy=False,
        )
        for index in range(num)
    ]
