"""Tiny random models of several architectures, and requests for them."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from periplus.codec.weights.layout import layout_of
from periplus.values.policy import Policy
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.engine import SampleRequest, WholeState
from rollout_worker.engines.slot_decoder import SlotDecoder
from rollout_worker.engines.tensor_memory import TensorMemory

EOS, PAD, VOCAB, WIDTH, MOST_NEW = 2, 0, 50, 9, 12

FIRST = Policy(0, 0)


def qwen3(seed: int = 0, **changes: Any) -> Any:
    """A Qwen3 with tied weights, grouped heads, and outputs that are not saturated."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
    }
    return _frozen(Qwen3ForCausalLM(Qwen3Config(**(sizes | changes))))


def llama() -> Any:
    """A Llama with untied weights."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    return _frozen(LlamaForCausalLM(config))


def gpt2() -> Any:
    """A GPT-2: learned positions, fused projections, biases."""
    torch.manual_seed(2)
    config = GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        initializer_range=0.2,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    return _frozen(GPT2LMHeadModel(config))


def _frozen(model: Any) -> Any:
    # Weights as they are published: every element is a bfloat16.
    model = model.eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16().float())
    return model


def request(
    group: int,
    sample: int = 0,
    *,
    length: int | None = None,
    temperature: float = 1.0,
    max_new_tokens: int = 6,
    greedy: bool = False,
    seed: int = 5,
) -> SampleRequest:
    """A request whose prompt is a function of its group."""
    length = length or 1 + group % WIDTH
    return SampleRequest(
        request_id=f"{group}/{sample}",
        prompt_ids=tuple(3 + (group * 7 + place * 5) % (VOCAB - 3) for place in range(length)),
        seed=seed,
        group=group,
        sample=sample,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        greedy=greedy,
    )


def state_of(model: Any) -> WeightState:
    """The model's weights as a published state: a copy, in bfloat16."""
    read = TensorMemory({name: parameter.detach() for name, parameter in model.named_parameters()}).read()
    return {name: Tensor(each.dtype, each.shape, each.data.copy()) for name, each in read.items()}


def whole(model: Any) -> WholeState:
    """All weights of the model, as `Engine.swap` takes them."""
    state = state_of(model)
    return WholeState(layout=layout_of(state), state=state)


def decoder(
    model: Any, *, num_slots: int = 6, policy: Policy | None = FIRST, end_ids: Sequence[int] = (EOS,)
) -> SlotDecoder:
    """Slots of the model, with weights of `policy`."""
    slots = SlotDecoder(
        model=model,
        end_ids=end_ids,
        pad_id=PAD,
        num_slots=num_slots,
        prompt_tokens=WIDTH,
        max_new_tokens=MOST_NEW,
        device=torch.device("cpu"),
        now_s=lambda: 0.0,
    )
    slots.policy = policy
    return slots
