"""Starts vLLM for a model of a real shape below this process, and makes the weights and requests that it is given.

vLLM uses the first GPU that this process sees. There it compiles and captures CUDA graphs, as in a worker. On a CPU it
does neither. Only `running` imports vLLM.
"""

import dataclasses
import sys
import tempfile
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from bench.engine_cases.accelerator.shapes import config_of, random_model
from bench.engine_cases.engine_load import MakeRequests
from periplus.codec.weights.layout import layout_of
from periplus.errors import ConfigError
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.probe_prompts import probe_prompts
from periplus.values.weight_state import WeightState
from rollout_worker.engines.engine import Engine, OnSwap, SampleRequest, WholeState
from rollout_worker.engines.request_limits import RequestLimits
from trainer.publishing import reference_logprobs
from trainer.publishing.trained_weights import weights_of

if TYPE_CHECKING:
    from rollout_worker.engines.vllm.async_llm_backend import AsyncLlmBackend
    from rollout_worker.engines.vllm.vllm_engine import VllmEngine

CPU_CACHE_BYTES = 1 << 28
"""Memory for keys and values on a CPU, where the programs are only tried."""

GPU_SHARE = 0.85
"""Share of a GPU's memory that vLLM takes for itself, unless a script says otherwise. vLLM's default is 0.9; the rest
has the context of the process that measures."""

PROBE_SEED = 0
"""Seed of the probe's prompts. Any would do."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """A vLLM below this process: the engine, and its backend for what only vLLM does."""

    engine: "VllmEngine"
    backend: "AsyncLlmBackend"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Weights in bfloat16, as they are published, with the trainer's log-probabilities of the probe in nats."""

    state: WeightState
    probe_logprobs: npt.NDArray[np.float32]


def published(model: Any) -> Published:
    """Return what the trainer would publish of a model, computed on the model's device."""
    probe = reference_logprobs.logprobs(model, probe_prompts(PROBE_SEED, model.config.vocab_size))
    return Published(state=weights_of(model).first(), probe_logprobs=probe)


def random_published(shape: str, device: torch.device) -> Published:
    """Return random weights of a shape. They are made on the device, whose memory is free again afterwards."""
    found = published(random_model(shape, device, torch.float32))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found


@asynccontextmanager
async def running(
    config: Any,
    device: torch.device,
    *,
    num_slots: int,
    prompt_tokens: int,
    new_tokens: int,
    gpu_share: float = GPU_SHARE,
    can_sleep: bool = False,
) -> AsyncIterator[RunningEngine]:
    """Start vLLM for a model's configuration, and end it afterwards.

    The engine has no weights yet. Its completions have no end token, so that they are as long as requests say.
    It ends the program, with a message, if vLLM is not installed or does not start.
    """
    try:
        from rollout_worker.engines.vllm.async_llm_backend import AsyncLlmBackend, VllmSettings
        from rollout_worker.engines.vllm.vllm_engine import VllmEngine
    except ImportError as error:
        sys.exit(f"this interpreter has no vLLM ({error}); run the script with that of an environment that has it")
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as name:
        # vLLM takes a model for one that only embeds text if the configuration names no class.
        config.architectures = config.architectures or ["Qwen3ForCausalLM"]
        config.save_pretrained(name)
        try:
            backend = await AsyncLlmBackend.start(
                VllmSettings(
                    folder=Path(name),
                    dtype="bfloat16",
                    num_slots=num_slots,
                    max_tokens=prompt_tokens + new_tokens,
                    cache_bytes=CPU_CACHE_BYTES if device.type == "cpu" else None,
                    gpu_share=gpu_share,
                    eager=device.type == "cpu",
                    can_sleep=can_sleep,
                )
            )
        except ConfigError as error:
            sys.exit(str(error))
        engine = VllmEngine(
            backend=backend,
            limits=RequestLimits(vocab_size=config.vocab_size, prompt_tokens=prompt_tokens, max_new_tokens=new_tokens),
            end_ids=(),
            num_slots=num_slots,
            computes_in_bfloat16=True,
        )
        try:
            yield RunningEngine(engine=engine, backend=backend)
        finally:
            await engine.close()


async def give(engine: Engine, state: WeightState, version: int = 0) -> float:
    """Write a whole state into an idle engine, check that it holds it, and return the seconds of writing."""
    report = await engine.swap(WholeState(layout=layout_of(state), state=state), Policy(0, version), OnSwap.DRAIN)
    assert await engine.digest() == state_digest(state), "the engine holds other weights than it was given"
    return report.write_s


def random_requests(vocab_size: int, prompt_tokens: int, new_tokens: int, *, greedy: bool = False) -> MakeRequests:
    """Return a function that makes requests with random prompts, which are a function of their ids, all different."""

    def make(num: int, prefix: str) -> list[SampleRequest]:
        rng = np.random.default_rng(zlib.crc32(prefix.encode()))
        return [
            SampleRequest(
                request_id=f"{prefix}/{index}",
                prompt_ids=tuple(rng.integers(3, vocab_size, prompt_tokens).tolist()),
                seed=0,
                group=index,
                sample=0,
                temperature=1.0,
                max_new_tokens=new_tokens,
                greedy=greedy,
            )
            for index in range(num)
        ]

    return make


def vocab_size_of(shape: str) -> int:
    """Return the size of a shape's vocabulary."""
    return int(config_of(shape).vocab_size)
