"""The sections `model` and `model.lora` of a job file: which model is trained, and which of its weights."""

from typing import Annotated

from pydantic import Field

from periplus.config.loading import Config


class LoraSection(Config):
    """Low-rank adapters (LoRA). Only they are trained, checkpointed and published after the first full state; workers
    merge them into their copies of the base."""

    rank: int = Field(default=16, ge=1, le=1024)
    """Columns of the one adapter matrix of a layer, and rows of the other."""

    alpha: float = Field(default=32.0, gt=0, le=1_000_000)
    """The product of the adapters is scaled by alpha / rank. No unit."""

    target_modules: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        max_length=64,
    )
    """Names of the linear layers that get adapters, each the last part of the layer's name in the model."""


class ModelSection(Config):
    """The model that is trained (the actor)."""

    path: str = Field(default="builtin:qwen3-tiny", min_length=1)
    """`builtin:qwen3-tiny` (a small Qwen3 with random weights and a character tokenizer), `builtin:qwen3-tiny-h32` (the
    same with heads that vLLM takes on a CPU), or a local directory with a Hugging Face checkpoint and its
    tokenizer."""

    lora: LoraSection | None = None
    """Train low-rank adapters instead of all weights; null trains all weights."""
