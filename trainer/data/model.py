"""The model that the trainer starts from: a Hugging Face checkpoint directory, or a built-in model.

A built-in model is a small random model of a real architecture with a character tokenizer. With it the whole runtime
can be shown to learn on two CPU cores, without a download. It is created once in a cache directory. Its directory name
contains all that determines its bytes: the model's name, the number of its recipe and the seed. It appears there by one
rename, so readers see all of it or nothing.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from periplus.errors import ConfigError, Denied, one_line
from periplus.job.inputs import adapter_base, check_model_dir
from periplus.job.job_file import BUILTIN_PREFIX
from periplus.job.model_section import BUILTIN, builtin_config
from periplus.process.disk import NO_ROOM, partial_path
from periplus.values.weight_state import SINGLE_FILE, write_safetensors
from trainer.data.characters import ANSWER, BOS, EOS, PAD, UNKNOWN, character_tokenizer
from trainer.data.pretrained import load_tokenizer, load_weights
from trainer.publishing.publish import BUNDLE_FILES, float32_state


def resolve_model_dir(path_or_builtin: str, cache_dir: Path, seed: int) -> Path:
    """Return the checkpoint directory of a job's model, and create a built-in model that is not in the cache yet.

    `seed` determines the weights of a built-in model. A LoRA adapter is merged into its base model, once. Raises:
    ConfigError if the argument names neither a built-in model nor a Hugging Face checkpoint or adapter directory.
    """
    if path_or_builtin.startswith(BUILTIN_PREFIX):
        if path_or_builtin not in BUILTIN:
            raise ConfigError(f"there is no built-in model {path_or_builtin!r}; choose one of {', '.join(BUILTIN)}")
        return _create_builtin(path_or_builtin, cache_dir, seed)
    path = Path(path_or_builtin)
    check_model_dir(path)
    base = adapter_base(path)
    return path if base is None else _merged(path, base, cache_dir)


def load_model(directory: Path) -> tuple[Any, PreTrainedTokenizerFast]:
    """Return the model of a checkpoint directory, in float32 and in evaluation mode, and its tokenizer.

    Raises: ConfigError as `load_weights` and `load_tokenizer` do.
    """
    return load_weights(directory), load_tokenizer(directory)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the built-in models' character tokenizer (trainer/data/characters.py) as a tokenizer of transformers."""
    return PreTrainedTokenizerFast(
        tokenizer_object=character_tokenizer(),
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=[ANSWER],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _merged(adapter: Path, base: Path, cache_dir: Path) -> Path:
    """Return the checkpoint of a base model with an adapter merged into it, in float32. The tokenizer is the base's."""
    digest = blake3(str(base.resolve()).encode())
    for file in sorted(file for pattern in ("adapter_*", "*.safetensors") for file in adapter.glob(pattern)):
        digest.update(file.read_bytes())

    def write(scratch: Path) -> None:
        import peft  # only here, as it is slow to import

        model = load_weights(base)
        try:
            model = peft.PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
        except Exception as error:  # the library raises what it likes for files that do not fit
            raise ConfigError(
                f"the adapter in {str(adapter)!r} does not fit its base model {str(base)!r}: {one_line(error)}"
            ) from error
        for name in BUNDLE_FILES:
            if (base / name).is_file():
                shutil.copyfile(base / name, scratch / name)
        write_safetensors(scratch / SINGLE_FILE, float32_state(model))

    return _created(cache_dir / f"merged-{digest.hexdigest(length=16)}", write)


def _create_builtin(name: str, cache_dir: Path, seed: int) -> Path:
    recipe = BUILTIN[name]

    def write(scratch: Path) -> None:
        tokenizer = build_tokenizer()
        tokenizer.save_pretrained(scratch)
        model = _random_qwen3(name, seed)
        model.config.save_pretrained(scratch)
        model.generation_config.save_pretrained(scratch)
        write_safetensors(scratch / SINGLE_FILE, float32_state(model))

    return _created(cache_dir / f"{name.removeprefix('builtin:')}-r{recipe.recipe}-s{seed}", write)


def _created(target: Path, write: Callable[[Path], None]) -> Path:
    """Return a directory of the cache, and have it written first if it is not there yet."""
    if target.is_dir():
        return target
    scratch = partial_path(target)  # mkdtemp would make it unreadable for other users
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch.mkdir(exist_ok=True)
        write(scratch)
        os.rename(scratch, target)
    except BaseException as error:
        shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(error, OSError) and target.is_dir():  # another process has created the same model
            return target
        if isinstance(error, OSError) and error.errno not in NO_ROOM:
            raise Denied(
                f"cannot write {target}, where built-in and merged models are kept: {error.strerror or error}; set "
                "XDG_CACHE_HOME to a folder that the trainer may write"
            ) from error
        raise
    return target


def _random_qwen3(name: str, seed: int) -> Any:
    # The weights depend on the seed alone, and torch's own generator stays as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(Qwen3Config.from_dict(builtin_config(name)))
