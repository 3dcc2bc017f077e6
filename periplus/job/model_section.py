"""The sections `model` and `model.lora` of a job file: which model is trained, and which of its weights."""

from typing import Annotated

from pydantic import Field, JsonValue

from periplus.config.loading import Config
from periplus.errors import shortened

MAX_TEMPLATE_CHARACTERS = 262_144
"""Longest chat template, in characters. Chosen by hand: templates with tools have ten thousand."""

TEMPLATE_SUFFIX = ".jinja"
"""Ending of a model.chat_template that names a file."""

NO_TEMPLATE = "none"
"""Value of model.chat_template that frames no prompt."""


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
    same with heads that vLLM takes on a CPU), a local directory with a Hugging Face checkpoint and its tokenizer, or a
    model of the Hugging Face Hub as ORGANISATION/NAME or hf://ORGANISATION/NAME[@REVISION], which is taken from the
    local cache and never downloaded."""

    revision: str | None = Field(default=None, min_length=1, max_length=256)
    """Branch, tag or commit of a model of the Hub; null means main. A submitted job records the commit."""

    chat_template: str | None = Field(default=None, min_length=1, max_length=MAX_TEMPLATE_CHARACTERS)
    """Chat template that frames each prompt, in place of the model's own: a file that ends with `.jinja`, the text of a
    template in Jinja, or `none` for plain text. null takes the model's own, or plain text if it has none. A submitted
    job records the text."""

    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Values that the chat template is called with, by name, such as `enable_thinking: false` for Qwen3."""

    lora: LoraSection | None = None
    """Train low-rank adapters instead of all weights; null trains all weights."""


def model_disagreements(model: ModelSection) -> list[str]:
    """Return what is wrong with the section, beside what each key's own bounds say; empty if nothing is."""
    template = model.chat_template
    is_text = template is not None and ("{{" in template or "{%" in template)
    if template is None or template == NO_TEMPLATE or template.endswith(TEMPLATE_SUFFIX) or is_text:
        return []
    return [
        f"model.chat_template is {shortened(template)!r}, which has no {{{{ or {{%, so every prompt would be the same; "
        f"give the text of a template in Jinja, a file that ends with {TEMPLATE_SUFFIX}, or {NO_TEMPLATE}"
    ]
