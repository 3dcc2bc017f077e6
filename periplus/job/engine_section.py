"""The `engine` section of a job: what samples completions in every region, and what a change of weights does to them.

`disagreements` refuses settings that the chosen engine does not have. Which engines are installed in a region is known
to its agent alone, and is checked when the job is placed.
"""

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from periplus.config.loading import Config

MIN_REQUESTS = 4
"""Fewest requests that decode together. With one to three rows, products on a CPU take other kernels, which round
differently, so that a sample would depend on how many others there are."""


VLLM_FROM, VLLM_BEFORE = (0, 32), (0, 34)
"""The versions of vLLM that are supported: from the first to before the second. Its interfaces for weight transfer and
for engines have changed within a few minor versions, the last time with 0.28. pyproject.toml has the same bounds."""


def unsupported_vllm(version: str) -> str:
    """Return why a version of vLLM is not supported; empty if it is."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and VLLM_FROM <= (int(found[1]), int(found[2])) < VLLM_BEFORE:
        return ""
    low, high = (".".join(map(str, bound)) for bound in (VLLM_FROM, VLLM_BEFORE))
    return f"it has vLLM {version}, and only versions from {low} to before {high} are supported"


class EngineSection(Config):
    """The inference engine of every rollout worker."""

    name: Literal["torch", "vllm"] = "torch"
    """`torch` is embedded: small models, no further installation, and samples that depend on nothing but weights and
    seed. `vllm` is for accelerators and large models. It has an environment of its own (docs/engines.md)."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type that the engine computes in. `auto` is float32 for torch on a CPU or a GPU without bfloat16 (compute
    capability below 8.0, such as V100 and T4), and else bfloat16. vllm does not start in bfloat16 on such a GPU.
    Weights are published in bfloat16 in any case. On CPUs with instructions for bfloat16, torch generates up to twice
    as fast in it; workers on other CPUs then sample other tokens from the same seed."""

    on_swap: Literal["keep_kv", "reprefill", "drain"] = "keep_kv"
    """What becomes of completions that are under way when new weights come. `keep_kv`: they go on, with the keys and
    values that the old weights computed. `reprefill`: these are computed again first. `drain`: new weights wait until
    they have ended. Each sample records which policy sampled which token, and whether it kept old keys and values."""

    max_requests: int | None = Field(default=None, ge=MIN_REQUESTS, le=4096)
    """Requests that decode at the same time in one worker. null: 64, but with torch 128 if their keys and values have
    at most 1 GiB, and with vllm on a GPU as many as `vllm serve` takes there by default (0.32: 256, or 1024 where there
    are 70 GiB of memory or more), less 8 for probes."""

    tensor_parallel: int | None = Field(default=None, ge=1, le=64)
    """Devices over which each engine divides every layer. null: 1 on cores, and as the plan says on accelerators. More
    than 1 only with vllm."""

    kv_cache_gib: float | None = Field(default=None, gt=0, le=65_536)
    """Memory for keys and values in GiB, of each device. null: 1 on a CPU, and what is free on an accelerator. Only
    with vllm; torch needs what max_requests and the lengths in `sampling` make it."""

    gpu_share: float | None = Field(default=None, gt=0, le=0.95)
    """Share of each GPU's memory that vLLM takes for weights, keys and values and all else. null: 0.9, which fits where
    the engine has its GPUs for itself. Set it where the trainer or other workers use the same GPU. Only with vllm,
    without kv_cache_gib; without a GPU it changes nothing."""

    url: Annotated[tuple[str, ...], Field(max_length=256)] = ()
    """Base URLs of servers that somebody runs already (`vllm serve`), such as http://10.0.0.7:8000. Each worker uses
    all of them. Empty: each worker starts an engine of its own. Only with vllm."""


def disagreements(engine: EngineSection, *, workers_per_region: int | None) -> list[str]:
    """Return a refusal for each setting that the engine does not have, or that the workers' number does not allow."""
    refusals = []
    if engine.name != "vllm":
        refusals += [
            f"engine.{key} is {value}, but engine.name is {engine.name}, which has no such setting; set "
            f"engine.name=vllm, or leave engine.{key} out"
            for key, value, default in (
                ("tensor_parallel", None if engine.tensor_parallel == 1 else engine.tensor_parallel, None),
                ("kv_cache_gib", engine.kv_cache_gib, None),
                ("gpu_share", engine.gpu_share, None),
                ("url", list(engine.url), []),
            )
            if value != default
        ]
    if engine.gpu_share is not None and engine.kv_cache_gib is not None:
        refusals.append(
            f"engine.gpu_share is {engine.gpu_share:g} and engine.kv_cache_gib is {engine.kv_cache_gib:g}, and both "
            "say how much of a GPU vLLM takes; leave one of them out"
        )
    for url in engine.url:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            refusals.append(f"engine.url has {url!r}, which is no http or https URL such as http://10.0.0.7:8000")
    if len(set(engine.url)) < len(engine.url):
        refusals.append("engine.url names a server twice; give each once")
    if engine.url and (workers_per_region or 1) > 1:
        refusals.append(
            f"engine.url is given and plan.workers_per_region is {workers_per_region}, but workers that share servers "
            "would write over each other's weights; set plan.workers_per_region=1, and give all servers to that worker"
        )
    if engine.url:
        refusals += [
            f"engine.{key} is {value}, but whoever started the servers of engine.url has chosen it; leave engine.{key} "
            "out"
            for key, value, default in (
                ("tensor_parallel", None if engine.tensor_parallel == 1 else engine.tensor_parallel, None),
                ("kv_cache_gib", engine.kv_cache_gib, None),
                ("gpu_share", engine.gpu_share, None),
                ("dtype", engine.dtype, "auto"),
            )
            if value != default
        ]
    return refusals
