"""The sections `data` and `environment` of a job file: where the problems come from."""

from pydantic import Field, JsonValue

from periplus.config.loading import Config

DEFAULT_SIZE = 16_384
"""Default of data.size. Chosen by hand: enough for thousands of steps on a small task, and generated in seconds."""


class DataSection(Config):
    """The problems that the model is trained and evaluated on."""

    path: str | None = Field(default=None, min_length=1)
    """A JSONL file with one object per line that has the texts `prompt` and `answer`; null when `environment` makes the
    problems. A relative path starts at the directory where the command runs."""

    size: int | None = Field(default=None, ge=1, le=100_000_000)
    """Number of problems that the environment makes; null means 16384. Equal prompts count once. The held-out and the
    warm-up problems are taken from these first. Only allowed with `environment`: a file has one problem per line."""


class EnvironmentSection(Config):
    """A task of reasoning-gym, which makes the problems and scores the completions."""

    name: str = Field(min_length=1)
    """Name of a reasoning-gym data set, such as chain_sum."""

    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of that data set, passed to it unchanged. `seed` and `size` are not allowed here: the job's own keys
    `seed` and `data.size` set them."""
