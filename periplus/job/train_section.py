"""The sections `optimizer` and `train` of a job file: what changes the weights, and what one step consumes."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from periplus.config.loading import Config
from periplus.values.schedule import Decay

MAX_COUNT = 1_000_000_000
"""Largest value of counts that have no other bound. Chosen by hand: no run has more steps."""

MAX_DEVICES = 64
"""Largest number of devices of one trainer: eight machines with eight GPUs. Chosen by hand."""


ShardingChoice = Literal["auto", "full", "hybrid", "none"]
"""How a trainer's devices divide weights and optimizer (`train.sharding`)."""

SMALL_MODEL = 16_000_000
"""Most parameters of a model of which each process of a trainer on cores keeps a copy (`train.sharding: auto`). Chosen
by hand: weights, gradients and optimizer take some 300 MB then."""


class OptimizerSection(Config):
    """The optimizer that updates the weights."""

    name: Literal["adamw", "sgd", "muon"] = "adamw"
    """torch's optimizer of this name, on float32 weights. `muon` changes the matrices inside the layers, and AdamW the
    rest: embeddings, output, norms and biases. It needs train.devices: 1."""

    lr: float = Field(default=1e-3, ge=0, le=1)
    """Peak learning rate of the reinforcement learning. 0 leaves the weights unchanged, to test everything else. No
    unit."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """Decay rates of the first and of the second moment of AdamW, each from 0 to below 1."""

    momentum: float | None = Field(default=None, ge=0, lt=1)
    """Momentum of sgd and muon. null: 0 for sgd, 0.95 for muon."""

    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Decoupled weight decay, times the learning rate, a step."""

    warmup_steps: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of steps over which the learning rate rises linearly from 0. A shorter job ends during the rise. This is
    not the supervised warm-up, which is train.warmup."""

    schedule: Literal[
        "constant",
        "linear",
        "cosine",
        "cosine_with_restarts",
        "polynomial",
        "inverse_sqrt",
        "cosine_with_min_lr",
        "warmup_stable_decay",
    ] = "constant"
    """Learning rate after the rise. `constant` keeps it; `linear` and `cosine` lower it to its floor at the last step,
    along a line or half a cosine. The others are those of transformers, with schedule_options."""

    schedule_options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of a schedule of transformers by their names there, such as num_cycles or num_decay_steps."""

    floor: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the last step, as a fraction of lr, for the schedules linear and cosine."""

    max_grad_norm: float = Field(default=1.0, gt=0, le=1e12)
    """A gradient with a larger Euclidean norm is scaled down to this norm."""


class WarmupSection(Config):
    """Supervised training on solved problems before the reinforcement learning, so that a model with random weights
    learns to answer."""

    num_examples: int = Field(default=4096, ge=1, le=100_000_000)
    """Number of solved problems. They are disjoint from those for training and from the held-out ones."""

    max_steps: int = Field(default=400, ge=1, le=MAX_COUNT)
    """Largest number of steps. The warm-up ends earlier when its loss reaches target_loss."""

    target_loss: float = Field(default=0.0, ge=0, le=1000)
    """Mean loss of the last five steps, in nats per token, at which the warm-up ends. With 0 only max_steps ends it."""

    batch_size: int = Field(default=64, ge=1, le=1_000_000)
    """Number of examples per step."""

    lr: float = Field(default=3e-3, gt=0, le=1)
    """Learning rate after the rise. No unit."""

    ramp_steps: int = Field(default=20, ge=0, le=MAX_COUNT)
    """Number of steps over which the learning rate rises linearly from 0."""

    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Decoupled weight decay, times the learning rate, a step."""


class TrainSection(Config):
    """What one training step consumes and how it uses it."""

    groups_per_step: int = Field(default=32, ge=1, le=65_536)
    """Number of groups in a batch. A step trains on groups_per_step x algorithm.group_size samples and raises the
    version by one."""

    micro_batch_samples: int = Field(default=256, ge=1, le=MAX_COUNT)
    """Largest number of samples in one forward and backward pass of a device. It bounds memory and changes nothing
    else."""

    devices: int = Field(default=1, ge=1, le=MAX_DEVICES)
    """Number of devices that share each training step. Each has a process, with its rows of the weights and of the
    optimizer's state (FSDP2), and computes its share of the samples. With GPUs these are GPUs of its machines,
    otherwise processors. They are on one machine of its region if one has enough that are free. On accelerators a plan
    may give the trainer fewer, where the others are worth more as generators. It changes results only by the rounding
    of sums."""

    sharding: ShardingChoice = "auto"
    """How several devices divide weights and optimizer. `full` divides them over all devices (FSDP). `hybrid` keeps a
    whole copy on each machine (HSDP), if all machines have as many devices, and `none` one on each device (DDP): fewer
    messages, and more memory. `auto` takes what the plan found fastest. Without a plan that says it, `auto` is `none`
    on cores for small models, and on GPUs the fewest messages with which what is kept takes at most half of the
    memory. It changes results only by the rounding of sums."""

    micro_batch_tokens: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Largest number of tokens in one forward and backward pass, prompts and completions together. A longer sequence
    gets a pass of its own. It bounds memory and changes nothing else. null chooses it by the sizes of the model, so
    that activations fit into memory."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights and activations in forward and backward passes. Whatever it is, the optimizer changes float32
    weights, and norms, softmax and losses are in float32. `auto` takes bfloat16 on an accelerator that has it (not
    V100 and T4), and on a CPU for models of 500,000 parameters or more if the CPU has instructions for it."""

    activation_checkpointing: Literal["auto", "on", "off"] = "auto"
    """Whether layers compute their activations again in the backward pass, which takes less memory and a third more
    time. `auto` does so if the activations of a pass would not fit into memory otherwise."""

    compile: bool = False
    """Compile the model's layers with torch's compiler, which joins norms, rotary embeddings, activations and sums.
    Steps take about a quarter less time on a CPU from about a million parameters on; much smaller models gain nothing.
    The first passes of a run take tens of seconds longer, and a few seconds once the machine has the compiled code. The
    machine needs a C++ compiler. Results differ by rounding."""

    pipeline_depth: float | None = Field(default=None, ge=1, le=1001)
    """Number of batches in the pipeline beside the one that is being trained: samples that are leased to workers or
    wait to be trained on. More batches keep the trainer busy but make samples older. null derives the number from
    measured times. The bound on staleness holds for any value."""

    filter_groups: bool = False
    """Replace each group whose samples all have the same reward, because such a group gives no gradient (DAPO's dynamic
    sampling). At most four batches of groups are replaced for each batch that is trained on."""

    minibatches: int = Field(default=1, ge=1, le=65_536)
    """Number of optimizer updates into which the groups of a step are divided. The version still rises by one."""

    epochs: int = Field(default=1, ge=1, le=64)
    """Number of times that a step trains on its groups."""

    logprob_mismatch_alarm: float | None = Field(default=0.02, gt=0, le=1000)
    """A warning is raised when the log-probabilities of the engine and of the trainer differ by more than this on
    average, in nats per token, over the samples of the same policy that the step starts from: the engine may hold other
    weights than it reports. null never warns."""

    warmup: WarmupSection | None = None
    """Supervised warm-up before the first step; null for none."""


def optimizer_disagreements(optimizer: OptimizerSection, *, devices: int) -> list[str]:
    """Return what keys of the section contradict each other, or the number of devices, one sentence each."""
    refusals = []
    if optimizer.name == "muon" and devices > 1:
        refusals.append(
            f"optimizer.name is muon and train.devices is {devices}, but muon needs whole matrices on one "
            "device; set train.devices=1, or optimizer.name=adamw"
        )
    if optimizer.momentum is not None and optimizer.name == "adamw":
        refusals.append("optimizer.momentum is set, but adamw has optimizer.betas in its place; leave momentum out")
    if optimizer.schedule_options and optimizer.schedule in tuple(Decay):
        refusals.append(
            f"optimizer.schedule_options is set, but the schedule {optimizer.schedule} has none; leave it out"
        )
    return refusals
