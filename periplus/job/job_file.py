"""The job file, `periplus.job/1`: everything that a person decides about one training run.

Only keys that the runtime executes are here; what is not here is not supported. The JSON schema for editors is made of
these classes and their docstrings (`periplus/schemas/job.schema.json`). What no single key can say is checked in
`resolve()`. It knows no torch, no fleet and no environment: whether a task, a model or a region exists is said by
whoever needs it.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from periplus.config import file_kinds, loading
from periplus.config.loading import Config
from periplus.errors import ConfigError, NotFound
from periplus.job import algorithm
from periplus.job.algorithm import AlgorithmSection
from periplus.job.unsupported import UNSUPPORTED

SCHEMA = "periplus.job/1"
BUILTIN_PREFIX = "builtin:"
DEFAULT_SIZE = 16_384
"""Enough for thousands of steps on a small task, and made in seconds."""

MAX_COUNT = 1_000_000_000
"""Bound of counts that have no other: more steps than any run has, and few enough for every arithmetic."""

MAX_SAMPLES_PER_STEP = 1 << 20
"""Samples of one step: the journal names each in one line, which an audit reads whole."""

MAX_FILE_BYTES = 1 << 20
"""Largest job file: a thousand times what a job with every key has, and read in seconds."""


class ModelSection(Config):
    """Which actor is trained."""

    path: str = Field(default="builtin:qwen3-tiny", min_length=1)
    """`builtin:qwen3-tiny` (a small Qwen3 with random weights and a character tokenizer), or a local directory with a
    Hugging Face checkpoint and its tokenizer."""


class DataSection(Config):
    """Which problems are trained on."""

    path: str | None = Field(default=None, min_length=1)
    """A JSONL file, one object a line with the texts `prompt` and `answer`; null when `environment` makes the problems.
    Relative to the directory where the command runs."""

    size: int | None = Field(default=None, ge=1, le=100_000_000)
    """Problems that the environment makes; null: 16384. Equal prompts count once, and the held-out and the warm-up
    problems are taken out of these first. Only with `environment`: a file has as many as it has lines."""


class EnvironmentSection(Config):
    """A task of reasoning-gym that makes and scores problems."""

    name: str = Field(min_length=1)
    """Name of a reasoning-gym data set, such as chain_sum."""

    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of that data set, passed on as they are. Not `seed` and `size`: the job has its own."""


class RewardSection(Config):
    """What scores a sample."""

    name: Literal["verifier", "shuffled"] = "verifier"
    """`verifier` compares with the problem's answer, from 0 to 1; `shuffled` deals the rewards of a batch to its
    samples at random: the control in which nothing can be learnt."""


class SamplingSection(Config):
    """How completions are drawn for training. Evaluation is always greedy."""

    temperature: float = Field(default=1.0, gt=0, le=4)
    """Divides the logits before sampling. No unit."""

    max_new_tokens: int = Field(default=16, ge=1, le=131_072)
    """Largest length of a completion, in tokens, the end token included."""

    prompt_tokens: int = Field(default=32, ge=1, le=131_072)
    """Width in tokens to which prompts are padded on the left; a longer prompt is refused at start."""


class OptimizerSection(Config):
    """How a gradient changes the weights."""

    name: Literal["adamw"] = "adamw"
    """AdamW on float32 weights."""

    lr: float = Field(default=1e-3, ge=0, le=1)
    """Peak learning rate of the reinforcement learning; 0 trains nothing, which is a check of everything else. No
    unit."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """Decay of the first and of the second moment, each from 0 to below 1."""

    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Decoupled weight decay, times the learning rate, a step."""

    warmup_steps: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Steps over which the learning rate rises linearly from 0; a shorter job ends during the rise. Not the supervised
    warm-up, which is train.warmup."""

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the rise: kept, or brought to its floor at the last step in a line or half a cosine."""

    floor: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the last step, as a fraction of lr; with a schedule that is not constant."""

    max_grad_norm: float = Field(default=1.0, gt=0, le=1e12)
    """The gradient is scaled down to this Euclidean norm."""


class WarmupSection(Config):
    """Supervised training on solved problems before the reinforcement learning, so that random weights can answer."""

    num_examples: int = Field(default=4096, ge=1, le=100_000_000)
    """Solved problems, disjoint from those trained on and held out."""

    max_steps: int = Field(default=400, ge=1, le=MAX_COUNT)
    """Most steps; the warm-up ends earlier when its loss reaches target_loss."""

    target_loss: float = Field(default=0.0, ge=0, le=1000)
    """Mean loss of the last five steps, nats a token, at which the warm-up ends. 0: only max_steps ends it."""

    batch_size: int = Field(default=64, ge=1, le=1_000_000)
    """Examples a step."""

    lr: float = Field(default=3e-3, gt=0, le=1)
    """Learning rate after the rise. No unit."""

    ramp_steps: int = Field(default=20, ge=0, le=MAX_COUNT)
    """Steps over which the learning rate rises linearly from 0."""

    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Decoupled weight decay, times the learning rate, a step."""


class TrainSection(Config):
    """What one training step consumes."""

    groups_per_step: int = Field(default=32, ge=1, le=65_536)
    """Groups in a batch: a step trains on groups_per_step x algorithm.group_size samples and raises the version."""

    micro_batch_samples: int = Field(default=256, ge=1, le=MAX_COUNT)
    """Most samples in one forward and backward pass: bounds memory, changes nothing else."""

    pipeline_depth: float | None = Field(default=None, ge=1, le=1001)
    """Batches in the pipeline beside the one that is being trained: what is leased, or waits to be trained on. More
    keep the trainer busy, and make samples older. null: as many as the measured times ask for. The bound on staleness
    holds whatever this says."""

    filter_groups: bool = False
    """Replace groups whose samples all have the same reward, which teach nothing, by others before they are trained on
    (DAPO's dynamic sampling); at most four batches of them for each batch."""

    minibatches: int = Field(default=1, ge=1, le=65_536)
    """Optimizer updates into which the groups of a step are divided; the version rises by one all the same."""

    epochs: int = Field(default=1, ge=1, le=64)
    """Times that a step goes over its groups."""

    logprob_mismatch_alarm: float | None = Field(default=0.02, gt=0, le=1000)
    """Mean difference, in nats a token, between the engine's and the trainer's log-probabilities of samples of the very
    policy that a step starts from, above which a warning is raised: the engine may hold other weights than it says.
    null: never."""

    warmup: WarmupSection | None = None
    """Supervised warm-up before the first step; null: none."""


class EvalSection(Config):
    """Greedy accuracy on held-out problems."""

    num_prompts: int = Field(default=512, ge=1, le=1_000_000)
    """Held-out problems, disjoint from warm-up and training."""

    every_steps: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Evaluate each time so many steps are done; 0: only before the first and after the last."""


class NetworkSection(Config):
    """How bytes cross between regions."""

    zstd_level: int = Field(default=15, ge=1, le=19)
    """Zstandard level of trajectories: higher is smaller and slower."""

    durability: Literal["process", "machine"] = "process"
    """What trajectories that a gateway or the ledger has acknowledged survive: the death of a `process`, or of its
    `machine` too, at the price of a disk sync for each group of them."""

    spool_mib: int = Field(default=256, ge=16, le=1_048_576)
    """Room in MiB that each region's gateway has for results which the trainer has not committed yet; when it is full
    the region's workers pause."""

    chain_versions: int = Field(default=8, ge=1, le=256)
    """How many versions each region's gateway keeps as deltas on top of its full copy of the weights: readers that far
    behind catch up by what they lack, others by the copy."""

    check_engine_every_versions: int = Field(default=10, ge=1, le=MAX_COUNT)
    """Every so many versions, and after each recovery, a worker hashes what its engine itself holds and compares
    log-probabilities of fixed prompts with the trainer's."""


class PlanSection(Config):
    """Who decides what runs where."""

    method: Literal["auto", "exact", "static"] = "auto"
    """`auto`: whichever placement takes least time a step by the planner's model of the measured regions and links,
    with proof where time allows; `exact`: the same by the exact method alone; `static`: no model, the trainer where new
    versions spread from fastest, rollout workers in every region with room."""

    workers_per_region: int = Field(default=1, ge=1, le=1024)
    """Rollout workers in each region that has any."""


class RegionsSection(Config):
    """Where the job may run."""

    min: int = Field(default=1, ge=1, le=1024)
    """The job waits until so many usable regions have joined."""

    trainer: str | None = Field(default=None, min_length=1)
    """Region that must host the trainer; null: the planner chooses."""

    rollout: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(default=None, min_length=1)
    """Regions that must host rollout workers, and no others; null: every region that does not slow the job down."""

    max: int | None = Field(default=None, ge=1, le=1024)
    """The job takes at most so many regions; null: any number."""

    forbid: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Regions where nothing of the job may run, as for data that must not go there."""


class FailureSection(Config):
    """When work is taken away from a worker."""

    lease_timeout_s: float = Field(default=60.0, gt=0, le=86_400)
    """Seconds after which a sample that was leased and did not come back is leased to another worker. The worker that
    let it expire gets one lease at a time until it returns a result, and one more for each result."""

    max_sample_attempts: int = Field(default=3, ge=1, le=100)
    """Attempts at one sample before its group is given up. An attempt is over when a worker that had started the sample
    fails, dies, or does not finish it within lease_timeout_s. What only waited in a worker's queue was no attempt."""

    on_overrun: Literal["hold", "abandon"] = "hold"
    """When a batch is there and older samples are missing that would be too old after it: `hold` the trainer for them,
    up to max_hold_s; `abandon` them at once, which favours short answers. Abandoned samples are counted by length."""

    max_hold_s: float = Field(default=600.0, ge=0, le=86_400)
    """Seconds that a step is held, at most."""

    max_worker_restarts: int = Field(default=3, ge=0, le=1000)
    """Times that one worker is started again before the job fails."""


class CheckpointSection(Config):
    """What a restart finds."""

    every_steps: int = Field(default=50, ge=0, le=MAX_COUNT)
    """Write a checkpoint before the first step and each time so many steps are done; 0: only after the last."""

    keep: int = Field(default=2, ge=1, le=1000)
    """Newest checkpoints that stay on disk."""

    replicate: Literal["none"] = "none"
    """Where else checkpoints are kept. `none`: only in the trainer's region, whose loss loses the job back to what was
    copied from there."""


class OutputSection(Config):
    """Where results go."""

    dir: str = Field(default="runs", min_length=1)
    """Directory under which the run makes its own, named by the job's id."""

    trajectories_mib: int = Field(default=1024, ge=0, le=1 << 30)
    """MiB of trajectories kept in the run's directory for the audit once a checkpoint covers them, oldest given up
    first. What no checkpoint covers yet is always kept."""


class JobFile(Config):
    """A Periplus job: train one model with reinforcement learning across regions."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """Short name: lower-case letters, digits and hyphens, at most 63."""

    model: ModelSection = ModelSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    data: DataSection = DataSection()
    environment: EnvironmentSection | None = None
    """The task that makes the problems. Exactly one of environment and data.path is given."""
    reward: RewardSection = RewardSection()
    sampling: SamplingSection = SamplingSection()
    optimizer: OptimizerSection = OptimizerSection()
    train: TrainSection = TrainSection()

    staleness: int = Field(default=2, ge=0, le=1000)
    """Largest age of a token that is trained on, in versions: the version that the step starts from minus the version
    that sampled the token. 0 is synchronous."""

    steps: int = Field(default=200, ge=1, le=MAX_COUNT)
    """Training steps of the reinforcement learning."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """All randomness of the job comes from it."""

    eval: EvalSection = EvalSection()
    network: NetworkSection = NetworkSection()
    plan: PlanSection = PlanSection()
    regions: RegionsSection = RegionsSection()
    failure: FailureSection = FailureSection()
    checkpoint: CheckpointSection = CheckpointSection()
    output: OutputSection = OutputSection()

    trackers: tuple[Literal["jsonl"]] = ("jsonl",)
    """Where step records go. There is one, `jsonl`, and it is always on: metrics.jsonl in the run's directory."""

    def to_json(self) -> str:
        """The resolved job on one line, with its schema: what travels to the services."""
        return json.dumps({"schema": SCHEMA, **self.model_dump(mode="json")}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "JobFile":
        """The inverse of to_json. Raises: ConfigError."""
        tree = loading.check_schema(loading.parse_json(text, "job"), SCHEMA, "job")
        return resolve(loading.validate(cls, tree, "job", _ELSEWHERE), "job")


KNOWN_ELSEWHERE = {
    "adv_estimator": "algorithm.name",
    "adv_norm": "algorithm.advantage_normalisation",
    "adam_beta1": "optimizer.betas",
    "adam_beta2": "optimizer.betas",
    "async_level": "staleness",
    "batch_size": "train.groups_per_step",
    "beta": "algorithm.kl_coefficient",
    "c_clip": "algorithm.dual_clip",
    "clip_ratio": "algorithm.clip_high",
    "clip_ratio_c": "algorithm.dual_clip",
    "clip_ratio_high": "algorithm.clip_high",
    "clip_ratio_low": "algorithm.clip_low",
    "cliprange_value": "algorithm.value_clip",
    "critic_learning_rate": "algorithm.critic_lr",
    "delta": "algorithm.dual_clip",
    "dynamic_sampling": "train.filter_groups",
    "env": "environment",
    "eval_steps": "eval.every_steps",
    "eps_clip": "algorithm.clip_low",
    "eps_clip_higher": "algorithm.clip_high",
    "epsilon": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "experiment_name": "name",
    "gae_gamma": "algorithm.gamma",
    "gradient_accumulation_steps": "train.micro_batch_samples",
    "importance_sampling_level": "algorithm.importance_level",
    "init_kl_coef": "algorithm.kl_coefficient",
    "kl_coef": "algorithm.kl_coefficient",
    "kl_ctl": "algorithm.kl_coefficient",
    "kl_estimator_type": "algorithm.kl_estimator",
    "kl_loss_coef": "algorithm.kl_coefficient",
    "kl_loss_type": "algorithm.kl_estimator",
    "kl_penalty": "algorithm.kl_estimator",
    "lam": "algorithm.gae_lambda",
    "learning_rate": "optimizer.lr",
    "loss_agg_mode": "algorithm.loss_aggregation",
    "loss_reduction": "algorithm.loss_aggregation",
    "loss_type": "algorithm.name",
    "lr_scheduler_type": "optimizer.schedule",
    "lr_warmup_steps": "optimizer.warmup_steps",
    "mask_truncated_completions": "algorithm.overlong_filter",
    "max_async_level": "staleness",
    "max_completion_length": "sampling.max_new_tokens",
    "max_off_policy_steps": "staleness",
    "max_prompt_length": "sampling.prompt_tokens",
    "max_response_length": "sampling.max_new_tokens",
    "max_steps": "steps",
    "max_tokens": "sampling.max_new_tokens",
    "micro_batch_size": "train.micro_batch_samples",
    "model_name_or_path": "model.path",
    "n": "algorithm.group_size",
    "n_samples_per_prompt": "algorithm.group_size",
    "num_generations": "algorithm.group_size",
    "num_iterations": "train.epochs",
    "num_minibatches": "train.minibatches",
    "optim": "optimizer.name",
    "output_dir": "output.dir",
    "overlong_buffer": "algorithm.overlong_cache_tokens",
    "per_device_train_batch_size": "train.micro_batch_samples",
    "ppo_epochs": "train.epochs",
    "ppo_micro_batch_size": "train.micro_batch_samples",
    "ppo_micro_batch_size_per_gpu": "train.micro_batch_samples",
    "ppo_mini_batch_size": "train.minibatches",
    "ppo_n_minibatches": "train.minibatches",
    "report_to": "trackers",
    "rollout_is": "algorithm.importance_correction",
    "rollout_is_threshold": "algorithm.importance_cap",
    "rollout_batch_size": "train.groups_per_step",
    "rollouts_per_example": "algorithm.group_size",
    "run_name": "name",
    "save_freq": "checkpoint.every_steps",
    "save_steps": "checkpoint.every_steps",
    "save_total_limit": "checkpoint.keep",
    "scale_rewards": "algorithm.advantage_normalisation",
    "test_freq": "eval.every_steps",
    "tis_cap": "algorithm.importance_cap",
    "tis_imp_ratio_cap": "algorithm.importance_cap",
    "total_training_steps": "steps",
    "total_steps": "steps",
    "train_batch_size": "train.groups_per_step",
    "use_kl_in_reward": "algorithm.kl_in",
    "use_kl_loss": "algorithm.kl_in",
    "value_eps_clip": "algorithm.value_clip",
    "vllm_importance_sampling_cap": "algorithm.importance_cap",
    "vllm_importance_sampling_mode": "algorithm.importance_level",
}
"""What TRL, prime-rl and verl call it: for suggestions, never accepted in place of ours."""

_ELSEWHERE: loading.KnownElsewhere = {**UNSUPPORTED, **KNOWN_ELSEWHERE}


def load_job(path: Path, overrides: Sequence[str] = ()) -> JobFile:
    """Read, override, validate and resolve a job file; relative paths of model and data become absolute.

    Raises: ConfigError.
    """
    tree = _job_tree(path)
    return _with_absolute_paths(resolve(loading.of_tree(JobFile, tree, str(path), overrides, _ELSEWHERE), str(path)))


def recorded_job(path: Path) -> JobFile:
    """Return the job of a run from its `config.yaml`. Raises: NotFound if it is not there, ConfigError."""
    if not path.is_file():
        raise NotFound(f"{path} does not exist, so the job of that run is not known; give a run as Periplus left it")
    tree = loading.check_schema(loading.read_yaml(path, MAX_FILE_BYTES), SCHEMA, str(path))
    return resolve(loading.validate(JobFile, tree, str(path), _ELSEWHERE), str(path))


def changed_job(job: JobFile, file: Path | None, overrides: Sequence[str]) -> JobFile:
    """Return the job with the keys that a job file and overrides give; the others stay. Raises: ConfigError."""
    tree = job.model_dump(mode="json")
    source = "the overrides"
    if file is not None:
        source = str(file)
        tree = loading.overlay(JobFile, tree, _job_tree(file))
    tree = loading.override(JobFile, tree, overrides, _ELSEWHERE)
    return _with_absolute_paths(resolve(loading.validate(JobFile, tree, source, _ELSEWHERE), source))


def _job_tree(path: Path) -> loading.Tree:
    """Return the keys of a job file; one that a run recorded names its schema, which must be known."""
    tree = loading.read_yaml(path, MAX_FILE_BYTES)
    file_kinds.need_kind(tree, str(path), ("job",))
    return loading.check_schema(tree, SCHEMA, str(path)) if "schema" in tree else tree


def _with_absolute_paths(job: JobFile) -> JobFile:
    updates: dict[str, Any] = {}
    if job.data.path:
        updates["data"] = job.data.model_copy(update={"path": str(Path(job.data.path).absolute())})
    if not job.model.path.startswith(BUILTIN_PREFIX):
        updates["model"] = job.model.model_copy(update={"path": str(Path(job.model.path).absolute())})
    return job.model_copy(update=updates)


def resolve(job: JobFile, source: str = "job") -> JobFile:
    """The job with what its keys imply filled in, once they agree with each other.

    Raises: ConfigError with every disagreement, one a line.
    """
    if refusals := _disagreements(job):
        raise ConfigError("\n".join(f"{source}: {refusal}" for refusal in refusals))
    filled = algorithm.filled_in(
        job.algorithm, max_new_tokens=job.sampling.max_new_tokens, optimizer_lr=job.optimizer.lr
    )
    job = job.model_copy(update={"algorithm": filled})
    if job.environment is None:
        return job
    size = job.data.size or DEFAULT_SIZE
    taken = job.eval.num_prompts + (job.train.warmup.num_examples if job.train.warmup else 0)
    if taken >= size:
        raise ConfigError(
            f"{source}: data.size is {size}, but eval.num_prompts and train.warmup.num_examples already take {taken}; "
            "raise data.size, so that problems are left to train on"
        )
    return job.model_copy(update={"data": job.data.model_copy(update={"size": size})})


def _disagreements(job: JobFile) -> list[str]:
    refusals = []
    if (job.environment is None) == (job.data.path is None):
        given = "neither is" if job.environment is None else "both are"
        refusals.append(f"exactly one of environment and data.path must be given, {given}")
    if job.data.path is not None and job.data.size is not None:
        refusals.append(f"data.size is {job.data.size}, but data.path is given: a file has as many problems as lines")
    if job.environment:
        if not _is_finite(job.environment.config):
            refusals.append("environment.config holds a number that is infinite or NaN; give finite numbers")
        refusals += [
            f"environment.config.{key} is set, but the job decides it: set {ours} instead"
            for key, ours in (("seed", "seed"), ("size", "data.size"))
            if key in job.environment.config
        ]
    refusals += algorithm.disagreements(
        job.algorithm, staleness=job.staleness, max_new_tokens=job.sampling.max_new_tokens
    )
    if job.train.minibatches > job.train.groups_per_step:
        refusals.append(
            f"train.minibatches is {job.train.minibatches}, but train.groups_per_step is only "
            f"{job.train.groups_per_step}: a group is never divided"
        )
    num_samples = job.train.groups_per_step * job.algorithm.group_size
    if num_samples > MAX_SAMPLES_PER_STEP:
        refusals.append(
            f"train.groups_per_step x algorithm.group_size is {num_samples} samples a step; at most "
            f"{MAX_SAMPLES_PER_STEP} can be recorded: lower one of the two"
        )
    refusals += _region_refusals(job)
    return refusals


def _is_finite(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _region_refusals(job: JobFile) -> list[str]:
    refusals, rollout, most = [], job.regions.rollout, job.regions.max
    pinned = {*(rollout or ()), *([job.regions.trainer] if job.regions.trainer else [])}
    if both := sorted(pinned & {*job.regions.forbid}):
        refusals.append(f"regions.forbid names {both[0]}, which regions.trainer or regions.rollout asks for")
    if most is not None and most < max(job.regions.min, len(pinned)):
        asked = f"regions.min is {job.regions.min}" if job.regions.min > most else f"{len(pinned)} are pinned"
        refusals.append(f"regions.max is {most}, but {asked}")
    if rollout is not None:
        used = {*rollout} | ({job.regions.trainer} if job.regions.trainer else set())
        if len({*rollout}) < len(rollout):
            refusals.append(f"regions.rollout names a region twice: {', '.join(rollout)}")
        room = len(used) + (job.regions.trainer is None)
        if job.regions.min > room:
            refusals.append(
                f"regions.min is {job.regions.min}, but regions.trainer and regions.rollout allow only {room}"
            )
    return refusals


def job_schema() -> dict[str, Any]:
    """The JSON schema of the job file, for editors and for `periplus/schemas/job.schema.json`."""
    schema = JobFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": SCHEMA, **schema}
