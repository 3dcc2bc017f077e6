"""Weights and a tokenizer for a model of which only the configuration is known."""

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from periplus.job.job_file import JobFile
from periplus.values.low_rank import WEIGHT, adapters_of, is_adapter
from periplus.values.weight_state import Tensor, WeightState

CHANGED_STRIDE = 50
"""One of so many elements changes in the update whose loading is timed: 2 %, of the order of a step in bfloat16."""

END = "<end>"
"""Word of the stand-in tokenizer for padding and end. No other word begins with it."""


def random_state(config: Any, job: JobFile) -> WeightState:
    """Return random weights for a model and the job's adapters, by the names under which a trainer publishes them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if (lora := job.model.lora) is not None:
        for name, shape in list(shapes.items()):
            if name.removesuffix(WEIGHT).rpartition(".")[2] in lora.target_modules:
                first, second = adapters_of(name)
                shapes |= {first: (lora.rank, shape[1]), second: (shape[0], lora.rank)}
    # One block of values is repeated: large models need not be drawn element by element.
    block = np.random.default_rng(job.seed).normal(0.0, 0.02, 1 << 20).astype(np.float32)
    words = (block.view(np.uint32) >> 16).astype(np.uint16)
    one = np.full(1, 0x3F80, np.uint16)  # norms scale by 1
    return {
        name: Tensor("BF16", shape, np.resize(words if len(shape) > 1 else one, shape).reshape(-1).view(np.uint8))
        for name, shape in shapes.items()
    }


def changed_state(state: WeightState, *, adapters_alone: bool) -> WeightState:
    """Return a state in which one of CHANGED_STRIDE elements differs in its lowest bit."""
    rng, new = np.random.default_rng(0), dict(state)
    for name, tensor in state.items():
        if adapters_alone and not is_adapter(name):
            continue
        words = tensor.data.view(np.uint16).copy()
        starts = np.arange(0, len(words) - CHANGED_STRIDE + 1, CHANGED_STRIDE)
        words[starts + rng.integers(0, CHANGED_STRIDE, len(starts))] ^= 1
        new[name] = Tensor(tensor.dtype, tensor.shape, words.view(np.uint8))
    return new


def stand_in_tokenizer(config: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose words are `t0`, `t1` and so on, one for each id of the model's vocabulary.

    An engine needs only the ids of padding and end. The worker's own part needs text for each token.
    """
    text = config.get_text_config()
    size = int(text.vocab_size)
    end = text.eos_token_id if isinstance(text.eos_token_id, int) and text.eos_token_id < size else size - 1
    words = {END if token == end else f"t{token}": token for token in range(size)}
    inner = Tokenizer(models.WordLevel(words, unk_token=END))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=END, eos_token=END)
