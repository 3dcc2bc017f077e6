"""Checks and loads a Hugging Face checkpoint directory: first its headers, before a weight is read, then its weights.

If a checkpoint lacks a tensor, transformers fills it with random numbers. If the checkpoint has a tensor that the model
does not have, transformers drops it. Both give no more than a warning. Here both are errors that name the tensors. So
is a tensor of another shape, of a dtype that is not a float of 16 or 32 bits, or with a value that is NaN or infinite.
Two kinds of tensors may be missing: one that is tied to another (`tie_word_embeddings`), and the value head of PPO's
critic, which no checkpoint provides (trainer/learning/critic.py makes it).

The expected tensors are those of the model's class, created from its configuration without memory (on torch's `meta`
device). transformers rewrites the checkpoints of some models while it loads them, such as those with experts. For
these, names are checked only when the weights are loaded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.conversion_mapping import get_model_conversion_mapping

from periplus.errors import ConfigError, one_line
from periplus.job.architectures import attention_function
from periplus.values.weight_state import WeightState, read_safetensors
from trainer.data.adapters import check_adapter_targets

FLOATS = frozenset({"F32", "BF16", "F16"})
"""Dtypes, under their names in safetensors, whose values float32 represents exactly."""

SHOWN = 5
"""Largest number of tensor names in one message, because a whole layer can have dozens. Chosen by hand."""


CAUSAL_WITHOUT_FLAG = frozenset({"gpt_neox", "gpt_neox_japanese"})
"""Causal models whose configurations say `is_decoder: false`, which their classes in transformers do not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Differences between the tensors of a checkpoint and those of its model, by tensor name.

    `missing` tensors are only in the model, `unexpected` ones only in the checkpoint. `misshapen` and `wrong_dtype` map
    names to a description of the difference.
    """

    missing: frozenset[str] = frozenset()
    unexpected: frozenset[str] = frozenset()
    misshapen: Mapping[str, str]
    wrong_dtype: Mapping[str, str]

    def refuse(self, directory: Path, model_class: str) -> None:
        """Raise ConfigError if there is any difference. The message lists all kinds of differences."""
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


def check_checkpoint(directory: Path, adapter_targets: Sequence[str] = ()) -> None:
    """Check that a checkpoint has a text model of a supported kind, and the tensors of that model. Reads no weights.

    `adapter_targets` are the names of layers that are to get adapters. Raises: ConfigError if the configuration is not
    that of a causal language model, if the tensors' names, shapes or dtypes are not those of the model, if tensors that
    the model ties differ in the files, or if it has no such layers.
    """
    model = _skeleton(directory)
    if not isinstance(getattr(model.config, "vocab_size", None), int):
        raise ConfigError(
            f"{type(model).__name__} in {str(directory)!r} has no vocab_size of its own: models of more than text are "
            "not supported yet"
        )
    if getattr(model.config, "is_decoder", True) is False and model.config.model_type not in CAUSAL_WITHOUT_FLAG:
        raise ConfigError(
            f"{type(model).__name__} in {str(directory)!r} is an encoder, in which tokens see those after them; give "
            "a causal language model"
        )
    check_adapter_targets(model, adapter_targets)
    # Only parameters are published and exported.
    if buffers := model.state_dict().keys() - {name for name, _ in model.named_parameters(remove_duplicate=False)}:
        raise ConfigError(
            f"{type(model).__name__} in {str(directory)!r} has tensors besides its parameters, which workers would not "
            f"get: {_listed(buffers)}; give a model of another architecture (docs/architectures.md)"
        )
    state = read_safetensors(directory)
    # Models whose checkpoints transformers rewrites while loading have other names in their files.
    if not get_model_conversion_mapping(model, add_legacy=False):
        misfit_of(model, state).refuse(directory, type(model).__name__)
    _refuse_untied(model, state, directory)


def _refuse_untied(model: Any, state: WeightState, directory: Path) -> None:
    """Refuse files with two different tensors where the model has one. transformers would drop either of them."""
    wanted = dict.fromkeys(model.state_dict(), ())
    held = {_model_name(name, wanted, model.base_model_prefix): tensor for name, tensor in state.items()}
    for target, source in dict(model.all_tied_weights_keys or {}).items():
        if target in held and source in held and held[target] != held[source]:
            raise ConfigError(
                f"{str(directory / 'config.json')!r} says that {target} is tied to {source} (tie_word_embeddings), but "
                f"the files hold different tensors under these names; set tie_word_embeddings to false to train both, "
                f"or remove {target} from the files if {source} is meant for both"
            )


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a checkpoint.

    Raises: ConfigError if it cannot be loaded, lacks an end token or a padding token, or has token ids beyond the
    model's vocabulary.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # errors of many classes, some of the tokenizers library
        raise ConfigError(
            f"the tokenizer in {str(directory)!r} cannot be loaded: {one_line(error)}; save it again with "
            "save_pretrained"
        ) from error
    for token in ("eos_token", "pad_token"):
        if getattr(tokenizer, f"{token}_id") is None:
            raise ConfigError(
                f"the tokenizer in {str(directory)!r} has no {token}; name one in its tokenizer_config.json (for "
                "pad_token the end token will do, since padding is masked)"
            )
    # An id beyond the vocabulary would read outside the embeddings.
    vocab_size = getattr(_config(directory), "vocab_size", None)
    token, largest = max(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    if isinstance(vocab_size, int) and largest >= vocab_size:
        raise ConfigError(
            f"the tokenizer in {str(directory)!r} has the token {token!r} with id {largest}, but the model's "
            f"vocab_size is {vocab_size}; give the tokenizer of these weights, or resize the embeddings"
        )
    return tokenizer


def load_weights(directory: Path) -> Any:
    """Load the model of a checkpoint in float32, in evaluation mode.

    Raises: ConfigError if it cannot be loaded, if the files do not provide every weight, or if a weight is not finite.
    """
    config = _config(directory)
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            attn_implementation=attention_function(config),
            # Report tensors of another shape rather than raise, so that one message names all of them.
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # the model's own code runs on what the configuration says
        raise ConfigError(f"the model in {str(directory)!r} cannot be loaded: {one_line(error)}") from error
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
    """Return how a checkpoint's tensors differ from those of a model. The model may be on the `meta` device."""
    # Compare names as the model has them. A missing tensor is no error if the tensor that it is tied to is there.
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
    """Return a checkpoint's tensor name as the model has it, with the prefix that headless checkpoints leave out."""
    if name not in wanted and f"{prefix}.{name}" in wanted:
        return f"{prefix}.{name}"
    return name


def _computed(model: Any) -> list[str]:
    """Return patterns of names in older checkpoints that the model now computes by itself, such as masks."""
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()} & {"inv_freq"}
    return [*(model._keys_to_ignore_on_load_unexpected or ()), *(rf"\.{re.escape(name)}$" for name in buffers)]


def _not_matching(names: Iterable[str], patterns: Iterable[str] | None) -> list[str]:
    return [name for name in names if not any(re.search(pattern, name) for pattern in patterns or ())]


def _skeleton(directory: Path) -> Any:
    """Return the checkpoint's model on the `meta` device, without memory for its weights."""
    config = _config(directory)
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # the model's own code runs on what the configuration says
        raise ConfigError(
            f"{str(directory / 'config.json')!r} describes no causal language model that transformers can make: "
            f"{one_line(error)}"
        ) from error


def _config(directory: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # validators of many model families, each with its own classes
        # transformers would advise `trust_remote_code=True`, which no job can set.
        if "trust_remote_code" in str(error):
            raise ConfigError(
                f"the model in {str(directory)!r} needs code from the checkpoint (auto_map in config.json), which is "
                "never run; give a checkpoint of a model that transformers itself supports"
            ) from error
        raise ConfigError(
            f"{str(directory / 'config.json')!r} is refused by transformers: {one_line(error)}"
        ) from error


def _count(names: Iterable[str]) -> str:
    number = len(list(names))
    return "1 tensor" if number == 1 else f"{number} tensors"


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:SHOWN]) + (f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else "")
