"""The keys of a workload file. What no single key can say is checked in `planner.files.workload_file`."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from periplus.config.loading import Config
from planner.files.ranges import MAX_TOKENS, Name, Tokens

Role = Literal["reward", "reference", "critic"]


class ShapeEntry(Config):
    """A decoder-only transformer's sizes, named as in the planner's values."""

    hidden_size: int = Field(ge=1, le=1_048_576)
    """Width of the residual stream."""
    num_layers: int = Field(ge=1, le=10_000)
    """Transformer layers."""
    num_heads: int = Field(ge=1, le=65_536)
    """Attention heads."""
    num_kv_heads: int = Field(ge=1, le=65_536)
    """Heads of keys and values; a divisor of num_heads, less than it with grouped queries."""
    head_dim: int = Field(ge=1, le=65_536)
    """Width of one head."""
    intermediate_size: int = Field(ge=1, le=10_000_000)
    """Width inside the MLP."""
    vocab_size: int = Field(ge=1, le=100_000_000)
    """Rows of the embedding."""
    tied_embeddings: bool
    """Whether the output head is the embedding."""
    qkv_bias: bool = False
    """Whether the projections to queries, keys and values have biases."""
    qk_norm: bool = False
    """Whether queries and keys are normalised."""
    num_mlp_matrices: int = Field(default=3, ge=2, le=3)
    """3: gated; 2: plain."""


class ArchitectureEntry(Config):
    """A model that the catalogue lacks. Exactly one of shape, config and config_path is given."""

    name: Name
    """What `model` and `models` say."""
    shape: ShapeEntry | None = None
    """Its sizes."""
    config: dict[str, JsonValue] | None = None
    """The content of its Hugging Face config.json."""
    config_path: Name | None = None
    """Path of that file, or of its directory, relative to this file."""


class LognormalEntry(Config):
    """Token counts whose logarithm is normal, cut at a cap."""

    median_tokens: Tokens
    """Before the cut."""
    sigma: float = Field(ge=0, le=4)
    """Standard deviation of the natural logarithm."""
    cap_tokens: Tokens
    """Longest that a sample can get."""


class CsvEntry(Config):
    """Token counts measured elsewhere, one row a sample."""

    path: Name
    """A CSV file with a header, relative to this file."""
    column: Name
    """Which column holds the token counts."""
    where: dict[str, str] = Field(default_factory=dict)
    """Only rows with these texts in these columns."""
    cap_tokens: Tokens | None = None
    """Longest that a sample can get; null: as long as the rows say."""


class LengthsEntry(Config):
    """A distribution of token counts. Exactly one key is given."""

    constant: Tokens | None = None
    """Every sample has so many."""
    lognormal: LognormalEntry | None = None
    """A formula."""
    quantiles: tuple[Annotated[float, Field(ge=0, le=MAX_TOKENS)], ...] | None = Field(
        default=None, min_length=1, max_length=4096
    )
    """Quantiles in rising order: of n values, the i-th is the quantile at (i + 1/2) / n. The last is 1 or more."""
    csv: CsvEntry | None = None
    """A measurement."""


class WeightsEntry(Config):
    """What one new version costs on a link between regions."""

    kind: Literal["dense", "delta"] = "dense"
    """`dense`: full bf16 copies; `delta`: lossless differences to the version before."""
    density: float | None = Field(default=None, ge=1e-9, le=1)
    """A delta's density: which part of the weights changes from one version to the next."""
    bits_per_change: float | None = Field(default=None, ge=1e-3, le=64)
    """A delta's bytes per change: its size divided by the number of changes."""
    bytes_per_param: float | None = Field(default=None, ge=1e-13, le=64)
    """In place of the two, or of what follows from the kind: bytes a version, divided by the trained parameters."""


class WorkloadFile(Config):
    """What one reinforcement-learning job asks of a fleet."""

    algorithm: Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo", "rloo", "reinforce_plus_plus", "ppo"]
    """As in a job. `ppo` has a critic."""
    architectures: tuple[ArchitectureEntry, ...] = Field(default=(), max_length=100)
    """Models that this file defines."""
    model: Name
    """The actor: a name in the catalogue, such as Qwen3-8B, or in `architectures`."""
    models: dict[Role, Name] = Field(default_factory=dict)
    """Models of other roles, where they are not the actor's."""
    eta: int = Field(ge=0, le=1000)
    """The bound on staleness, in versions; 0 is synchronous."""
    prompts_per_step: int = Field(ge=1, le=1_000_000)
    """Groups that a step trains on."""
    group_size: int = Field(ge=1, le=1024)
    """Samples of one prompt."""
    prompt_tokens: LengthsEntry
    """How long prompts are."""
    completion_tokens: LengthsEntry
    """How long completions are."""
    epochs_per_step: int = Field(default=1, ge=1, le=64)
    """Times that a step goes over its samples."""
    minibatches_per_step: int = Field(default=1, ge=1, le=100_000)
    """Optimizer updates an epoch."""
    reward: Literal["rule", "model"] | None = None
    """What scores a sample; null: a model for ppo, a rule for the others."""
    reference: bool | None = None
    """Whether a reference policy scores the samples; null: for ppo only."""
    optimizer: Literal["adamw", "adamw8bit", "sgd"] = "adamw"
    """Decides the training state: 16, 10 or 8 bytes a trained parameter."""
    train_state_bytes_per_param: float | None = Field(default=None, ge=4, le=64)
    """In place of what follows from the optimizer: bf16 weight and gradient (4 bytes), master and moments."""
    lora_rank: int = Field(default=0, ge=0, le=65_536)
    """Rank of adapters on every matrix; 0: all parameters are trained."""
    weights: WeightsEntry = WeightsEntry()
    """How new versions travel between regions."""
    trajectory_bytes_per_token: float = Field(default=5.0, ge=1e-3, le=1000)
    """What a sample's tokens cost on the way to the trainer."""
