"""The GPUs that this process may use: whether an engine fits into their free memory, and which types they compute in.

An engine that does not fit is refused before it starts, in words that name what is free and which key to set. Another
process of the job, such as the trainer, may hold a part of the same GPU.

`python -m rollout_worker.engines.cards` prints the GPUs as JSON. A process that asks CUDA for free memory holds some
hundred MiB of the GPU from then on, so a worker whose engine runs in other processes has one that ends ask for it.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from periplus.errors import ConfigError, one_line
from periplus.job.engine_section import MIN_REQUESTS
from periplus.values.machine import BFLOAT16_CAPABILITY

GIB = 1 << 30

ASK_S = 120.0
"""Seconds that the process which asks may take. It imports torch, which takes 12 s from a slow disk. Chosen by hand."""

CACHE_MARGIN_BYTES = GIB
"""Bytes of a GPU that the torch engine needs beside weights, keys and values: for prefills and logits. Chosen by hand.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU as a process that starts now sees it: its index, model, compute capability, and bytes of its memory."""

    index: int
    name: str
    capability: tuple[int, int]
    free_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name}, {self.free_bytes / GIB:.1f} of {self.total_bytes / GIB:.1f} GiB free)"


def card(index: int) -> Card:
    """Return a GPU as this process sees it."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    return Card(
        index=index,
        name=torch.cuda.get_device_name(index),
        capability=torch.cuda.get_device_capability(index),
        free_bytes=free_bytes,
        total_bytes=total_bytes,
    )


def cards_of_new_process() -> list[Card]:
    """Return all visible GPUs as a new process sees them, which takes seconds. Raises: ConfigError if it fails."""
    command = [sys.executable, "-P", "-m", "rollout_worker.engines.cards"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        said = (getattr(error, "stderr", None) or "").strip().splitlines()[-1:]
        raise ConfigError(f"the GPUs do not say what is free: {' '.join([*said, one_line(error)])}") from error
    # Libraries may print before it.
    found = json.loads(done.stdout.splitlines()[-1])
    return [Card(**{**each, "capability": tuple(each["capability"])}) for each in found]


def torch_dtype(choice: str, card: Card | None) -> str:
    """Return the type that the torch engine computes in, for `engine.dtype`, on a GPU or, with None, a CPU."""
    if choice != "auto":
        return choice
    # On a CPU float32, as the promise of equal bits needs.
    return "bfloat16" if card is not None and card.capability >= BFLOAT16_CAPABILITY else "float32"


def check_vllm_dtype(cards: Sequence[Card], dtype: str) -> None:
    """Check that vLLM can compute in a type on each of its GPUs. Raises: ConfigError.

    float16 takes the place of bfloat16 nowhere: it cannot hold all published weights, so no digest would be right.
    """
    for each in cards:
        if dtype == "bfloat16" and each.capability < BFLOAT16_CAPABILITY:
            raise ConfigError(
                f"vLLM would compute in bfloat16, which {each} does not have: its compute capability is "
                f"{'.'.join(map(str, each.capability))}, and bfloat16 needs 8.0; set engine.name=torch and "
                "engine.dtype=float32"
            )


def check_vllm_fits(cards: Sequence[Card], *, share: float, cache_bytes: int | None, weight_bytes: int) -> None:
    """Check that vLLM fits into each of its GPUs. Raises: ConfigError.

    It takes `share` of a GPU's memory in all; with `cache_bytes` these and `weight_bytes` instead, both of each GPU.
    """
    for each in cards:
        if cache_bytes is None:
            if each.free_bytes < share * each.total_bytes:
                raise ConfigError(
                    f"vLLM would take {share:g} of the memory of {each}, {share * each.total_bytes / GIB:.1f} GiB, and "
                    "other processes hold too much of it; set engine.gpu_share below "
                    f"{each.free_bytes / each.total_bytes:.2f}, or engine.kv_cache_gib"
                )
        elif each.free_bytes < weight_bytes + cache_bytes:
            raise ConfigError(
                f"vLLM would take {(weight_bytes + cache_bytes) / GIB:.1f} GiB of {each}: {weight_bytes / GIB:.1f} for "
                f"weights and {cache_bytes / GIB:.1f} for keys and values; lower engine.kv_cache_gib, or set "
                "engine.gpu_share in its place"
            )


def slot_bytes(config: Any, num_columns: int, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values of so many tokens, in all layers of a model with this configuration."""
    config = config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(num_columns * config.num_hidden_layers * heads * head_dim * 2 * dtype.itemsize)


def check_torch_fits(card: Card, config: Any, *, num_slots: int, num_columns: int, dtype: torch.dtype) -> None:
    """Check that the torch engine's keys and values fit beside its weights, which are on the GPU. Raises: ConfigError.

    From its first requests on it has memory for `num_columns` tokens for each of `num_slots` slots.
    """
    needed = slot_bytes(config, num_columns, dtype)
    if num_slots * needed + CACHE_MARGIN_BYTES > card.free_bytes:
        most = max(0, card.free_bytes - CACHE_MARGIN_BYTES) // needed
        remedy = f"engine.max_requests={most} or lower" if most >= MIN_REQUESTS else "engine.name=vllm"
        raise ConfigError(
            f"the torch engine needs {num_slots * needed / GIB:.1f} GiB for the keys and values of {num_slots} "
            f"requests at once, and {CACHE_MARGIN_BYTES / GIB:.1f} GiB beside them, on {card}; set "
            f"{remedy}, or lower sampling.max_new_tokens"
        )


def weight_bytes(config: Any, dtype: torch.dtype) -> int:
    """Return the bytes of a model's weights, from its configuration in transformers."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    num_parameters: int = sum(each.numel() for each in model.parameters())
    return num_parameters * dtype.itemsize


if __name__ == "__main__":
    sys.stdout.write(json.dumps([asdict(card(index)) for index in range(torch.cuda.device_count())]))
