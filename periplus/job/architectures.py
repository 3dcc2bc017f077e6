"""The model architectures that tests take through a whole job, and what is said of a model of another one.

`ARCHITECTURES` is the one list. An architecture has the name that transformers gives it, the `model_type` in a model's
`config.json`. tests/integration/test_architectures.py takes a small random model of each through the functions of a
job: it is checked, loaded, trained for a step, published, generated with and exported, and every number is compared
with transformers' own. docs/architectures.md is generated from the list.

A model of an architecture that is not in the list is accepted with a warning, unless it is known not to work: some
architectures by name (`WITHOUT_TORCH`), others by a part that their configuration names.
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
    - `adapters`: training with `model.lora`. `adapter_layers`: names for `model.lora.target_modules`, where the default
      has other ones. `torch`, `vllm`: serving by these engines; `vllm` with one device.
    - `vllm_refusal`: why vLLM cannot serve it, if `vllm` is REFUSED.
    - `remark`: what is special about it, as a sentence for the table.
    """

    model_type: str
    class_name: str
    families: str
    is_packed: bool
    windows: bool = False
    ties: str
    adapters: Coverage = Coverage.TESTED
    adapter_layers: Sequence[str] = ()
    torch: Coverage = Coverage.TESTED
    vllm: Coverage = Coverage.NOT_TESTED
    vllm_refusal: str = ""
    remark: str = ""


ARCHITECTURES: Sequence[SupportedArchitecture] = (
    SupportedArchitecture(
        model_type="qwen2",
        class_name="Qwen2ForCausalLM",
        families="Qwen2, Qwen2.5",
        is_packed=True,
        windows=True,
        ties="both",
        vllm=Coverage.TESTED,
    ),
    SupportedArchitecture(
        model_type="qwen3",
        class_name="Qwen3ForCausalLM",
        families="Qwen3",
        is_packed=True,
        ties="both",
        vllm=Coverage.TESTED,
    ),
    SupportedArchitecture(
        model_type="llama",
        class_name="LlamaForCausalLM",
        families="Llama 2 and 3, SmolLM and SmolLM2, TinyLlama",
        is_packed=True,
        ties="both",
        vllm=Coverage.TESTED,
    ),
    SupportedArchitecture(
        model_type="mistral",
        class_name="MistralForCausalLM",
        families="Mistral 7B",
        is_packed=True,
        windows=True,
        ties="untied",
        vllm=Coverage.TESTED,
    ),
    SupportedArchitecture(
        model_type="gemma",
        class_name="GemmaForCausalLM",
        families="Gemma",
        is_packed=True,
        ties="tied",
        vllm=Coverage.TESTED,
    ),
    SupportedArchitecture(
        model_type="gemma2",
        class_name="Gemma2ForCausalLM",
        families="Gemma 2",
        is_packed=False,
        windows=True,
        ties="tied",
        vllm=Coverage.TESTED,
        remark="Trainer and torch engine compute its attention by `eager`, which alone caps the scores.",
    ),
    SupportedArchitecture(
        model_type="gemma3_text",
        class_name="Gemma3ForCausalLM",
        families="Gemma 3 270M and 1B",
        is_packed=False,
        windows=True,
        ties="tied",
        vllm=Coverage.TESTED,
        remark="Larger Gemma 3 models take images (`gemma3`) and are refused.",
    ),
    SupportedArchitecture(
        model_type="phi",
        class_name="PhiForCausalLM",
        families="Phi-1, Phi-1.5, Phi-2",
        is_packed=True,
        ties="untied",
        vllm=Coverage.REFUSED,
        vllm_refusal="vLLM leaves out the bias of its output projection",
        adapter_layers=("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
    ),
    SupportedArchitecture(
        model_type="phi3",
        class_name="Phi3ForCausalLM",
        families="Phi-3, Phi-3.5 mini, Phi-4",
        is_packed=True,
        windows=True,
        ties="untied",
        vllm=Coverage.TESTED,
        adapter_layers=("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
        remark="With vLLM `engine.tensor_parallel` must be 1, since projections are fused in its checkpoints.",
    ),
    SupportedArchitecture(
        model_type="gpt2",
        class_name="GPT2LMHeadModel",
        families="GPT-2",
        is_packed=True,
        ties="tied",
        adapters=Coverage.REFUSED,
        vllm=Coverage.REFUSED,
        vllm_refusal="vLLM holds its weights transposed",
        remark="Adapters need linear layers, and its layers store weights transposed.",
    ),
    SupportedArchitecture(
        model_type="olmo",
        class_name="OlmoForCausalLM",
        families="OLMo",
        is_packed=True,
        ties="untied",
        vllm=Coverage.TESTED,
    ),
    SupportedArchitecture(
        model_type="olmo2",
        class_name="Olmo2ForCausalLM",
        families="OLMo 2",
        is_packed=True,
        ties="untied",
        vllm=Coverage.TESTED,
    ),
    SupportedArchitecture(
        model_type="olmo3",
        class_name="Olmo3ForCausalLM",
        families="OLMo 3",
        is_packed=False,
        windows=True,
        ties="untied",
        vllm=Coverage.TESTED,
    ),
    SupportedArchitecture(
        model_type="gpt_neox",
        class_name="GPTNeoXForCausalLM",
        families="Pythia, GPT-NeoX",
        is_packed=False,
        ties="untied",
        vllm=Coverage.REFUSED,
        vllm_refusal="vLLM calls its tensors by other names",
        adapter_layers=("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    ),
    SupportedArchitecture(
        model_type="granite",
        class_name="GraniteForCausalLM",
        families="Granite 3",
        is_packed=False,
        ties="untied",
        vllm=Coverage.TESTED,
        remark="Padded, because its logits are scaled after the output projection.",
    ),
    SupportedArchitecture(
        model_type="smollm3",
        class_name="SmolLM3ForCausalLM",
        families="SmolLM3",
        is_packed=False,
        ties="tied",
        vllm=Coverage.TESTED,
    ),
    SupportedArchitecture(
        model_type="mixtral",
        class_name="MixtralForCausalLM",
        families="Mixtral",
        is_packed=False,
        ties="untied",
        vllm=Coverage.REFUSED,
        vllm_refusal="its experts are one tensor there",
        adapter_layers=("q_proj", "k_proj", "v_proj", "o_proj"),
        remark="The loss that balances the experts is not added.",
    ),
    SupportedArchitecture(
        model_type="qwen3_moe",
        class_name="Qwen3MoeForCausalLM",
        families="Qwen3 with experts",
        is_packed=False,
        ties="untied",
        vllm=Coverage.REFUSED,
        vllm_refusal="its experts are one tensor there",
        adapter_layers=("q_proj", "k_proj", "v_proj", "o_proj"),
        remark="The loss that balances the experts is not added.",
    ),
)
"""The tested architectures, in the order of the table."""

BY_MODEL_TYPE: Mapping[str, SupportedArchitecture] = MappingProxyType({each.model_type: each for each in ARCHITECTURES})
"""The tested architectures by `model_type`."""


RECURRENT = "it has recurrent or state-space layers, whose state that engine does not keep"
"""Why the torch engine cannot generate with models whose layers keep a state in place of keys and values."""

WITHOUT_TORCH: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        (
            "bamba",
            "falcon_h1",
            "falcon_mamba",
            "granitemoehybrid",
            "jamba",
            "mamba",
            "mamba2",
            "minimax",
            "nemotron_h",
            "olmo_hybrid",
            "qwen3_5_moe_text",
            "qwen3_5_text",
            "qwen3_next",
            "recurrent_gemma",
            "rwkv",
            "zamba",
            "zamba2",
        ),
        RECURRENT,
    )
    | {
        "bloom": "it derives its position biases from a mask of another form than that engine's",
        "gpt_neo": "its layers with local attention make masks of their own, which are others in that engine",
        "llama4_text": "its layers attend in chunks, which that engine does not do",
        "openai-gpt": "it keeps no keys and values from one token to the next",
    }
)
"""Architectures with which the torch engine fails, or generates other tokens than transformers, and why. Each was tried
with transformers 5.19, or has the layers of one that was."""

CAUSAL_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers, as `layer_types` in a configuration names them, that the torch engine computes."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of configurations that give the number of experts of a layer."""

DYNAMIC_ROPES = frozenset({"dynamic", "longrope", "su"})
"""Kinds of rotary embeddings whose frequencies change with the longest sequence of a batch."""


def architecture_remarks(
    config: Mapping[str, Any], source: str, *, engine: str, has_adapters: bool, longest: int
) -> tuple[str, ...]:
    """Return a warning if no test covers a model's architecture with this engine; nothing if one does.

    `config` is the model's configuration, read from the file `source`. `engine` is the job's `engine.name`. `longest`
    is the most tokens that a prompt and its completion have together. Raises: ConfigError if the model is known not to
    work.
    """
    kind = str(config.get("model_type"))
    listed = BY_MODEL_TYPE.get(kind)
    refusal = _refusal(config, kind, engine, longest)
    if refusal is None and listed is not None and has_adapters and listed.adapters is Coverage.REFUSED:
        refusal = f"{kind} cannot be trained with model.lora: its layers are none that adapters know; leave it out"
    if refusal is not None:
        raise ConfigError(
            f"{source} has the model_type {kind!r}: {refusal} (docs/architectures.md lists what is tested)"
        )
    if listed is None:
        tested = ", ".join(BY_MODEL_TYPE)
        return (
            f"the architecture {kind} is not among those tested: {tested}; before you rely on it, compare what final/ "
            "generates in transformers with the samples of the run",
        )
    if engine == "vllm" and listed.vllm is Coverage.NOT_TESTED:
        return (f"the architecture {kind} is tested with engine.name=torch, but not with engine.name=vllm",)
    return ()


def _refusal(config: Mapping[str, Any], kind: str, engine: str, longest: int) -> str | None:
    if config.get("use_bidirectional_attention"):
        return "use_bidirectional_attention is set, so that tokens see those after them; give a causal language model"
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    rope = rope if isinstance(rope, Mapping) else {}
    trained = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    if (rope.get("rope_type") or rope.get("type")) in DYNAMIC_ROPES and isinstance(trained, int) and longest > trained:
        return (
            f"beyond {trained} tokens its rotary embeddings depend on the other sequences of a batch, and prompts and "
            f"completions have up to {longest}; lower sampling.prompt_tokens or sampling.max_new_tokens"
        )
    if engine == "vllm":
        why = _vllm_refusal(config, kind)
        return None if why is None else f"engine.name=vllm cannot serve it: {why}; set engine.name=torch"
    if engine != "torch":
        return None
    layers = {str(layer) for layer in config.get("layer_types") or ()}
    if config.get("alibi"):
        why = "alibi is set, and its position biases come out otherwise there"
    elif layers - CAUSAL_LAYERS:
        why = f"it has layers of {', '.join(sorted(layers - CAUSAL_LAYERS))}, and only attention is supported"
    else:
        why = WITHOUT_TORCH.get(kind)
    return None if why is None else f"engine.name=torch cannot generate with it: {why}; give a model of another kind"


def _vllm_refusal(config: Mapping[str, Any], kind: str) -> str | None:
    listed = BY_MODEL_TYPE.get(kind)
    if listed is not None and listed.vllm is Coverage.REFUSED:
        return listed.vllm_refusal
    if any(isinstance(config.get(key), int) and config[key] > 1 for key in EXPERTS):
        return "its experts are one tensor there"
    # vLLM 0.32 does not start with such a model.
    layers = set(config.get("layer_types") or ())
    if kind == "qwen2" and config.get("use_sliding_window") and len(layers) > 1:
        return "only some of its layers have a sliding window, which vLLM does not support for this architecture"
    return None


def attention_function(config: Any) -> str | None:
    """Return the attention of transformers that a model must be computed with; None leaves the choice to transformers.

    `config` is the model's configuration. Some models cap the attention scores (`attn_logit_softcapping`). Of the
    attention functions in transformers that run on every device only `eager` does that: `sdpa`, its default, leaves
    the cap out and says nothing.
    """
    return "eager" if getattr(config, "attn_logit_softcapping", None) else None
