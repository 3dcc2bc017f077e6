"""The sections `model` and `model.lora` of a job file: which model is trained, and which of its weights.

The sizes of the built-in models are here too; `trainer/data/model.py` makes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, JsonValue

from periplus.config.loading import Config
from periplus.errors import shortened

MAX_TEMPLATE_CHARACTERS = 262_144
"""Longest chat template, in characters. Chosen by hand: templates with tools have ten thousand."""

TEMPLATE_SUFFIX = ".jinja"
"""Ending of a model.chat_template that names a file."""

NO_TEMPLATE = "none"
"""Value of model.chat_template that frames no prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Recipe:
    """Sizes of a random Qwen3 model.

    `recipe` is a number that must rise whenever anything that determines the model's bytes changes. `init_std` is the
    standard deviation of random weights. `max_positions` is the longest sequence in tokens.
    """

    recipe: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    rope_theta: float
    init_std: float
    max_positions: int


BUILTIN: Mapping[str, Qwen3Recipe] = MappingProxyType(
    {
        "builtin:qwen3-tiny": Qwen3Recipe(
            recipe=3,
            hidden_size=128,
            intermediate_size=64,
            num_layers=2,
            num_heads=8,
            # Prompts have tens of tokens. With the usual 1e4 most rotary frequencies would hardly turn in this range.
            rope_theta=20.0,
            # The usual 0.02 suits hidden sizes of thousands. At 128 it delays learning.
            init_std=0.05,
            max_positions=512,
        ),
        # The same with heads of 32 dimensions, the least that vLLM's attention on a CPU takes.
        "builtin:qwen3-tiny-h32": Qwen3Recipe(
            recipe=1,
            hidden_size=128,
            intermediate_size=64,
            num_layers=2,
            num_heads=4,
            rope_theta=20.0,
            init_std=0.05,
            max_positions=512,
        ),
    }
)
"""Built-in models by the name that a job gives them."""

BUILTIN_VOCABULARY = 79
"""Tokens of the built-in models' tokenizer (trainer/data/characters.py), whose first ids are padding, BOS and EOS. A
test checks that they agree."""


def builtin_config(name: str) -> dict[str, Any]:
    """Return the values of the `config.json` of a built-in model. Raises: KeyError if there is no such model."""
    recipe = BUILTIN[name]
    return {
        "model_type": "qwen3",
        "vocab_size": BUILTIN_VOCABULARY,
        "hidden_size": recipe.hidden_size,
        "intermediate_size": recipe.intermediate_size,
        "num_hidden_layers": recipe.num_layers,
        "num_attention_heads": recipe.num_heads,
        "num_key_value_heads": recipe.num_heads,
        "head_dim": recipe.hidden_size // recipe.num_heads,
        "max_position_embeddings": recipe.max_positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": recipe.rope_theta},
        "initializer_range": recipe.init_std,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


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

    @property
    def lora_rank(self) -> int:
        """The rank of the adapters; 0 without any."""
        return self.lora.rank if self.lora else 0


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
