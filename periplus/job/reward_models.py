"""The digests of reward models: which checkpoint a job means, wherever its workers find it."""

from pathlib import Path

from blake3 import blake3

from periplus.config.local_paths import expanded_path
from periplus.errors import ConfigError
from periplus.job.reward_functions import ModelReward
from periplus.job.reward_section import RewardSection

SUFFIXES = (".json", ".safetensors", ".model", ".txt", ".jinja")
"""Suffixes of the files that decide what a checkpoint computes: configuration, weights and tokenizer."""

CONFIG_FILE = "config.json"
"""File name of a Hugging Face model configuration."""


def checkpoint_digest(folder: Path) -> str:
    """Return the BLAKE3 digest of the checkpoint in a folder: of the names and contents of its files, in order.

    Raises: OSError if a file cannot be read.
    """
    whole = blake3()
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in SUFFIXES:
            content = blake3()
            content.update_mmap(file)
            whole.update(file.name.encode() + b"\0" + content.digest())
    return whole.hexdigest()


def resolved_models(reward: RewardSection) -> RewardSection:
    """Return the section with absolute paths and digests of its reward models. Digests that it has already stay.

    Raises: ConfigError for a folder without a checkpoint.
    """
    return reward.model_copy(
        update={
            "functions": tuple(
                _resolved(index, entry) if isinstance(entry, ModelReward) else entry
                for index, entry in enumerate(reward.functions)
            )
        }
    )


def _resolved(index: int, entry: ModelReward) -> ModelReward:
    key = f"reward.functions.{index}.path"
    folder = Path(expanded_path(entry.path, key)).absolute()
    digest = entry.digest
    if digest is None:
        if not (folder / CONFIG_FILE).is_file():
            raise ConfigError(
                f"{key} is {entry.path!r}, which holds no {CONFIG_FILE}; give a local folder with the checkpoint and "
                "tokenizer of a sequence classifier"
            )
        try:
            digest = checkpoint_digest(folder)
        except OSError as error:
            raise ConfigError(f"{key}: {folder} cannot be read: {error.strerror}; give readable files") from error
    return entry.model_copy(update={"path": str(folder), "digest": digest})
