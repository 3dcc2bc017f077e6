"""A Hugging Face checkpoint directory: judged by its headers before a weight is read, and again by what was loaded.

transformers fills a tensor that a checkpoint lacks with random numbers and drops one that the model does not have, with
no more than a warning. Here each of these is refused by name, and so is a tensor of another shape, of a dtype that is
not a float of 16 or 32 bits, or with a value that is NaN or infinite. Two kinds of tensors need not be in the files:
one that is tied to another (`tie_word_embeddings`), and the value head of PPO's critic, which no checkpoint provides
(trainer/learning/critic.py makes it).

The tensors that a model wants are those of its own class, made from its configuration without memory (on torch's `meta`
device). For models whose checkpoints transformers rewrites while it loads them, such as those with experts, names are
judged when the weights are loaded.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.conversion_mapping import get_model_conversion_mapping

from periplus.errors import ConfigError
from periplus.values.weight_state import WeightState, read_safetensors

FLOATS = frozenset({"F32", "BF16", "F16"})
"""Dtypes that float32 holds without a loss, under their names in safetensors."""

SHOWN = 5
"""Most names of a kind in one message: whole layers have dozens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """How the tensors of a checkpoint differ from those that its model has, by name."""

    missing: frozenset[str] = frozenset()
    unexpected: frozenset[str] = frozenset()
    misshapen: Mapping[str, str]
    wrong_dtype: Mapping[str, str]

    def refuse(self, directory: Path, model_class: str) -> None:
        """Raises: ConfigError with every kind of difference, if there is any."""
        sentences = [
            f"{_count(names)} {what}: {_listed(names)}"
            for what, names in (
                ("the model has and the files lack", self.missing),
                ("the files have and the model lacks", self.unexpected),
                ("of another shape", [f"{name} ({how})" for name, how in self.misshapen.items()]),
                ("stored as no float of 16 or 32 bits", [f"{name} ({how})" for name, how in self.wrong_dtype.items()]),
            )
            if names
        ]
        if sentences:
            raise ConfigError(
                f"the weights in {str(directory)!r} are not those of the {model_class} that its config.json describes: "
                f"{'; '.join(sentences)}. Save or download the checkpoint again, with its own config.json"
            )


def check_checkpoint(directory: Path) -> None:
    """Hold configuration and headers of a checkpoint against each other. Raises: ConfigError."""
    model = _skeleton(directory)
    if not isinstance(getattr(model.config, "vocab_size", None), int):
        raise ConfigError(
            f"{type(model).__name__} in {str(directory)!r} has no vocab_size of its own: models of more than text are "
            "not supported yet"
        )
    if getattr(model.config, "is_decoder", True) is False:
        raise ConfigError(
            f"{type(model).__name__} in {str(directory)!r} is an encoder: each token sees those after it. Give a "
            "causal language model"
        )
    if not get_model_conversion_mapping(model, add_legacy=False):
        misfit_of(model, read_safetensors(directory)).refuse(directory, type(model).__name__)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint. Raises: ConfigError if it has no end token, or tokens that the model lacks."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of many classes, some of them the tokenizer library's own
        raise ConfigError(
            f"the tokenizer in {str(directory)!r} cannot be loaded: {_one_line(error)}; save it again with "
            "save_pretrained"
        ) from error
    for token in ("eos_token", "pad_token"):
        if getattr(tokenizer, f"{token}_id") is None:
            raise ConfigError(
                f"the tokenizer in {str(directory)!r} has no {token}; name one in its tokenizer_config.json (for "
                "pad_token the end token will do, since padding is masked)"
            )
    vocab_size = getattr(_config(directory), "vocab_size", None)
    token, largest = max(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    if isinstance(vocab_size, int) and largest >= vocab_size:
        raise ConfigError(
            f"the tokenizer in {str(directory)!r} has the token {token!r} with id {largest}, but the model's "
            f"vocab_size is {vocab_size}; give the tokenizer of these weights, or resize the embeddings"
        )
    return tokenizer


def load_weights(directory: Path) -> Any:
    """The model in float32, in evaluation mode. Raises: ConfigError if the files do not give every weight a number."""
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # the model's own code runs on what the configuration says
        raise ConfigError(f"the model in {str(directory)!r} cannot be loaded: {_one_line(error)}") from error
    Misfit(
        missing=frozenset(found["missing_keys"]),
        unexpected=frozenset(found["unexpected_keys"]),
        misshapen={name: f"{tuple(there)}, not {tuple(here)}" for name, there, here in found["mismatched_keys"]},
        wrong_dtype={},
    ).refuse(directory, type(model).__name__)
    if odd := [name for name, parameter in model.named_parameters() if not bool(torch.isfinite(parameter).all())]:
        raise ConfigError(
            f"the weights in {str(directory)!r} hold NaN or infinite values in {_count(odd)}: {_listed(odd)}; save or "
            "download the checkpoint again"
        )
    return model.eval()


def misfit_of(model: Any, state: WeightState) -> Misfit:
    """How a checkpoint's tensors differ from those of a model, which may be without memory."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    held = {_model_name(name, wanted, model.base_model_prefix): tensor for name, tensor in state.items()}
    tied = dict(model.all_tied_weights_keys or {})
    partners = tied | {source: target for target, source in tied.items()}
    missing = (name for name in wanted.keys() - held.keys() if partners.get(name) not in held)
    shared = sorted(wanted.keys() & held.keys())
    return Misfit(
        missing=frozenset(_not_matching(missing, model._keys_to_ignore_on_load_missing)),
        unexpected=frozenset(_not_matching(held.keys() - wanted.keys(), _computed(model))),
        misshapen={n: f"{held[n].shape}, not {wanted[n]}" for n in shared if held[n].shape != wanted[n]},
        wrong_dtype={n: held[n].dtype for n in shared if held[n].dtype not in FLOATS},
    )


def _model_name(name: str, wanted: Mapping[str, Any], prefix: str) -> str:
    """A checkpoint of a model without its head leaves out the prefix of everything below the head."""
    if name not in wanted and f"{prefix}.{name}" in wanted:
        return f"{prefix}.{name}"
    return name


def _computed(model: Any) -> list[str]:
    """Patterns of names that older checkpoints have and that today's model computes for itself, such as masks."""
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()} & {"inv_freq"}
    return [*(model._keys_to_ignore_on_load_unexpected or ()), *(rf"\.{re.escape(name)}$" for name in buffers)]


def _not_matching(names: Iterable[str], patterns: Iterable[str] | None) -> list[str]:
    return [name for name in names if not any(re.search(pattern, name) for pattern in patterns or ())]


def _skeleton(directory: Path) -> Any:
    """The model without memory for its weights."""
    config = _config(directory)
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # the model's own code runs on what the configuration says
        raise ConfigError(
            f"{str(directory / 'config.json')!r} describes no causal language model that transformers can make: "
            f"{_one_line(error)}"
        ) from error


def _config(directory: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # validators of many model families, each with its own classes
        # transformers would advise `trust_remote_code=True`, which no job can set.
        if "trust_remote_code" in str(error):
            raise ConfigError(
                f"the model in {str(directory)!r} needs code that lies in the checkpoint (auto_map in config.json), "
                "which is not run; give a checkpoint of a model that transformers has itself"
            ) from error
        raise ConfigError(
            f"{str(directory / 'config.json')!r} is refused by transformers: {_one_line(error)}"
        ) from error


def _count(names: Iterable[str]) -> str:
    number = len(list(names))
    return "1 tensor" if number == 1 else f"{number} tensors"


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:SHOWN]) + (f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else "")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
