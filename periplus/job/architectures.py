"""The model architectures that tests take through a whole job, and what is said of a model of another one.

`ARCHITECTURES` is the one list. An architecture has the name that transformers gives it, the `model_type` in a model's
`config.json`. tests/integration/test_architectures.py takes a small random model of each through the functions of a
job: it is checked, loaded, trained for a step, published, generated with and exported, and every number is compared
with transformers' own. docs/architectures.md is generated from the list.

A model of an architecture that is not in the list is accepted with a warning, unless it is in `REFUSED` or has a part
that is known not to work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from periplus.errors import ConfigError


class Coverage(StrEnum):
    """What is known of an architecture in one use."""

    TESTED = "tested"
    REFUSED = "refused"
    NOT_TESTED = "not tested"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedArchitecture:
    """One architecture, and the uses in which a test covers it.

    - `model_type`, `class_name`: its names in `config.json`. `families`: well-known models that have it.
    - `is_packed`: whether the trainer packs its sequences without padding. With sliding windows it never does.
    - `windows`: whether models with sliding windows are among the tested ones; False if there are none.
    - `ties`: whether output projection and embeddings are one tensor, in the models that are tested.
    - `adapters`: training with `model.lora`. `torch`, `vllm`: serving by these engines; `vllm` with one device.
    - `remark`: what is special about it, as a sentence for the table.
    """

    model_type: str
    class_name: str
    families: str
    is_packed: bool
    windows: bool = False
    ties: str
    adapters: Coverage = Coverage.TESTED
    torch: Coverage = Coverage.TESTED
    vllm: Coverage = Coverage.NOT_TESTED
    remark: str = ""


ARCHITECTURES: Sequence[SupportedArchitecture] = (
    SupportedArchitecture(
        model_type="qwen2",
        class_name="Qwen2ForCausalLM",
        families="Qwen2, Qwen2.5",
        is_packed=True,
        windows=True,
        ties="both",
    ),
    SupportedArchitecture(
        model_type="qwen3", class_name="Qwen3ForCausalLM", families="Qwen3", is_packed=True, ties="both"
    ),
    SupportedArchitecture(
        model_type="llama",
        class_name="LlamaForCausalLM",
        families="Llama 2 and 3, SmolLM and SmolLM2, TinyLlama",
        is_packed=True,
        ties="both",
    ),
    SupportedArchitecture(
        model_type="mistral",
        class_name="MistralForCausalLM",
        families="Mistral 7B",
        is_packed=True,
        windows=True,
        ties="untied",
    ),
    SupportedArchitecture(
        model_type="gemma", class_name="GemmaForCausalLM", families="Gemma", is_packed=True, ties="tied"
    ),
    SupportedArchitecture(
        model_type="gemma2",
        class_name="Gemma2ForCausalLM",
        families="Gemma 2",
        is_packed=False,
        windows=True,
        ties="tied",
        remark="Trainer and torch engine compute its attention by `eager`, which alone caps the scores.",
    ),
    SupportedArchitecture(
        model_type="gemma3_text",
        class_name="Gemma3ForCausalLM",
        families="Gemma 3 270M and 1B",
        is_packed=False,
        windows=True,
        ties="tied",
        remark="Larger Gemma 3 models take images (`gemma3`) and are refused.",
    ),
    SupportedArchitecture(
        model_type="phi",
        class_name="PhiForCausalLM",
        families="Phi-1, Phi-1.5, Phi-2",
        is_packed=True,
        ties="untied",
        remark="Layers for `model.lora.target_modules`: q_proj, k_proj, v_proj, dense, fc1, fc2.",
    ),
    SupportedArchitecture(
        model_type="phi3",
        class_name="Phi3ForCausalLM",
        families="Phi-3, Phi-3.5 mini, Phi-4",
        is_packed=True,
        windows=True,
        ties="untied",
        remark="Layers for `model.lora.target_modules`: qkv_proj, o_proj, gate_up_proj, down_proj.",
    ),
    SupportedArchitecture(
        model_type="gpt2",
        class_name="GPT2LMHeadModel",
        families="GPT-2",
        is_packed=True,
        ties="tied",
        adapters=Coverage.REFUSED,
        remark="Its weights are stored transposed, which adapters do not support yet.",
    ),
    SupportedArchitecture(
        model_type="olmo", class_name="OlmoForCausalLM", families="OLMo", is_packed=True, ties="untied"
    ),
    SupportedArchitecture(
        model_type="olmo2", class_name="Olmo2ForCausalLM", families="OLMo 2", is_packed=True, ties="untied"
    ),
)
"""The tested architectures, in the order of the table."""


def attention_function(config: Any) -> str | None:
    """Return the attention of transformers that a model must be computed with; None leaves the choice to transformers.

    `config` is the model's configuration. Some models cap the attention scores (`attn_logit_softcapping`). Of the
    attention functions in transformers that run on every device only `eager` does that: `sdpa`, its default, leaves
    the cap out and says nothing.
    """
    return "eager" if getattr(config, "attn_logit_softcapping", None) else None
