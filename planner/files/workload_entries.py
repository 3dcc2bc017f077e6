"""Keys of a workload file (`periplus.workload/1`), with their types, ranges and meanings.

The docstrings become the descriptions of `periplus/schemas/workload.schema.json`. Each model checks its own keys only.
Rules that involve several keys are checked in `planner.files.workload_file`.
"""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from periplus.config.loading import Config
from planner.problem.architecture import Shape
from planner.problem.ranges import MAX_TOKENS, Name, Tokens

Role = Literal["reward", "reference", "critic"]
"""Role whose model may differ from the actor's."""


class ArchitectureEntry(Config):
    """A model that the packaged catalogue lacks. Exactly one of shape, config and config_path is given."""

    name: Name
    """Name by which `model` and `models` refer to this model."""
    shape: Shape | None = None
    """Sizes of the model."""
    config: dict[str, JsonValue] | None = None
    """Content of the model's Hugging Face config.json."""
    config_path: Name | None = None
    """Path of the model's config.json or of its directory, relative to this file."""


class LognormalEntry(Config):
    """Log-normal distribution of token counts, in which longer samples are cut at a cap."""

    median_tokens: Tokens
    """Median of the distribution before the cut."""
    sigma: float = Field(ge=0, le=4)
    """Standard deviation of the natural logarithm of the token count."""
    cap_tokens: Tokens
    """Largest number of tokens of a sample."""


class CsvEntry(Config):
    """Measured token counts in a CSV file with one row per sample."""

    path: Name
    """Path of a CSV file with a header, relative to this file."""
    column: Name
    """Name of the column that holds the token counts."""
    where: dict[str, str] = Field(default_factory=dict)
    """Filter: only rows that have these texts in these columns are read."""
    cap_tokens: Tokens | None = None
    """Number of tokens at which longer samples are cut. null if none are cut."""


class LengthsEntry(Config):
    """Distribution of token counts. Exactly one key is given."""

    constant: Tokens | None = None
    """Number of tokens that every sample has."""
    lognormal: LognormalEntry | None = None
    """Log-normal distribution."""
    quantiles: tuple[Annotated[float, Field(ge=0, le=MAX_TOKENS)], ...] | None = Field(
        default=None, min_length=1, max_length=4096
    )
    """Quantiles in ascending order. With n values, value i (from 0) is the quantile at (i + 1/2) / n. The last one is 1
    or more."""
    csv: CsvEntry | None = None
    """Measured samples."""


class WeightsEntry(Config):
    """Size of one published version on a link between regions."""

    kind: Literal["dense", "delta"] = "dense"
    """Encoding of a version: `dense` is a full bf16 copy, `delta` is the lossless difference to the previous
    version."""
    density: float | None = Field(default=None, ge=1e-9, le=1)
    """Fraction of the weights that change from one version to the next. Only for deltas."""
    bits_per_change: float | None = Field(default=None, ge=1e-3, le=64)
    """Size of a delta in bits, divided by the number of weights that change. Only for deltas."""
    bytes_per_param: float | None = Field(default=None, ge=1e-13, le=64)
    """Bytes of one version divided by the number of trained parameters. It replaces density and bits_per_change of a
    delta, or the 2 bytes of a dense copy."""


class WorkloadFile(Config):
    """Models, batch sizes, token lengths and staleness bound of one reinforcement-learning job."""

    algorithm: Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo", "m2po", "rloo", "reinforce_plus_plus", "ppo"]
    """Algorithm of the job. Only `ppo` has a critic."""
    architectures: tuple[ArchitectureEntry, ...] = Field(default=(), max_length=100)
    """Models that this file defines."""
    model: Name
    """Model of the actor: a name of the packaged catalogue, such as Qwen3-8B, or of `architectures`."""
    models: dict[Role, Name] = Field(default_factory=dict)
    """Models of other roles. A role that is left out has the actor's model."""
    eta: int = Field(ge=0, le=1000)
    """Staleness bound: the largest number of versions by which a consumed token may lag. 0 is synchronous training."""
    prompts_per_step: int = Field(ge=1, le=1_000_000)
    """Number of prompts, and so of groups of samples, that one step trains on."""
    group_size: int = Field(ge=1, le=1024)
    """Number of samples of one prompt."""
    prompt_tokens: LengthsEntry
    """Distribution of prompt lengths."""
    completion_tokens: LengthsEntry
    """Distribution of completion lengths."""
    epochs_per_step: int = Field(default=1, ge=1, le=64)
    """Number of passes over the samples of a step."""
    minibatches_per_step: int = Field(default=1, ge=1, le=100_000)
    """Number of optimizer updates per epoch."""
    reward: Literal["rule", "model"] | None = None
    """What scores a sample. null stands for a model with ppo, and for a rule with the other algorithms."""
    reference: bool | None = None
    """Whether a reference policy scores the samples. null stands for yes with ppo, and for no with the others."""
    optimizer: Literal["adamw", "adamw8bit", "sgd"] = "adamw"
    """Optimizer, which determines the resident training state: 16, 10 or 8 bytes per trained parameter."""
    train_state_bytes_per_param: float | None = Field(default=None, ge=4, le=64)
    """Bytes of resident training state per trained parameter: bf16 weight and gradient (4 bytes), master weight and
    moments. It replaces the number that follows from the optimizer."""
    gradient_bytes_per_param: float = Field(default=2.0, ge=0.125, le=8)
    """Bytes of the gradient of a trained parameter on a link, where devices sum it: 2 in bf16, 4 in float32."""
    lora_rank: int = Field(default=0, ge=0, le=65_536)
    """Rank of the LoRA adapters on every weight matrix; 0 if all parameters are trained."""
    weights: WeightsEntry = WeightsEntry()
    """Size of the versions that are published to other regions."""
    trajectory_bytes_per_token: float = Field(default=5.0, ge=1e-3, le=1000)
    """Bytes per token of a finished sample that travel to the trainer's region."""
