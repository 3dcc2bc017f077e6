"""The job file, `periplus.job/1`: every setting that a user chooses for one training run.

The file has only keys that the runtime executes; a setting that has no key here is not supported. Each section is a
frozen pydantic model. The JSON schema for editors (`periplus/schemas/job.schema.json`) is generated from these classes
and their docstrings. `resolve()` checks rules between keys and fills in defaults that depend on other keys. This module
does not check whether a task, a model or a region exists; the code that needs them does.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from periplus.config import file_kinds, loading
from periplus.config.loading import Config, Words
from periplus.config.local_paths import expanded_path
from periplus.config.secret_names import SecretName, VariableName, secret_refusals
from periplus.errors import ConfigError, NotFound
from periplus.job import algorithm, engine_section, reward_code, reward_models, reward_section
from periplus.job.algorithm import AlgorithmSection
from periplus.job.data_section import (
    DEFAULT_SIZE,
    DataSection,
    EnvironmentSection,
    data_disagreements,
    environment_disagreements,
    makes_problems,
)
from periplus.job.engine_section import EngineSection
from periplus.job.eval_section import EvalSection, EvalSet, eval_disagreements
from periplus.job.hub import located
from periplus.job.model_section import MAX_TEMPLATE_CHARACTERS, TEMPLATE_SUFFIX, ModelSection, model_disagreements
from periplus.job.other_trainers.known_elsewhere import KNOWN_ELSEWHERE
from periplus.job.other_trainers.unsupported import UNSUPPORTED
from periplus.job.reward_section import RewardSection
from periplus.job.sampling_section import StopStrings
from periplus.job.train_section import MAX_COUNT, OptimizerSection, TrainSection, optimizer_disagreements
from periplus.values.replica_url import NO_REPLICA, check_replica_url, names_region
from periplus.values.schedule import Decay, learning_rate

SCHEMA = "periplus.job/1"
"""Name and version of the job file's schema."""

BUILTIN_PREFIX = "builtin:"
"""Prefix of a `model.path` that names a built-in model and not a directory."""

MAX_SAMPLES_PER_STEP = 1 << 20
"""Largest number of samples of one step. The journal names each sample of a step in one line, which an audit reads
whole. Chosen by hand."""

MAX_FILE_BYTES = 1 << 20
"""Largest job file, in bytes. Chosen by hand: far more than a job with every key has, and still read in seconds."""


class SamplingSection(Config):
    """How completions are sampled for training. Those of evaluations are sampled as eval.sampling and the `sampling` of
    each of eval.sets say."""

    temperature: float = Field(default=1.0, gt=0, le=4)
    """The logits are divided by this before sampling. No unit."""

    max_new_tokens: int = Field(default=16, ge=1, le=131_072)
    """Largest length of a completion in tokens, including the end token."""

    expected_tokens: float | None = Field(default=None, ge=1, le=131_072)
    """Mean length of a completion in tokens, as far as you know it: plans predict with it. Memory is planned for
    max_new_tokens. Runs record the mean as completion_tokens_mean. Default: sampling.max_new_tokens."""

    stop: StopStrings = ()
    """Texts that end a completion: with the token after which its text, without special tokens, first contains one of
    them. Tokens up to that one are kept and trained on. Reward functions get the text before the stop string."""

    prompt_tokens: int = Field(default=32, ge=1, le=131_072)
    """Length in tokens to which prompts are padded on the left. A job with a longer prompt is refused at its start."""


class NetworkSection(Config):
    """How data travels between regions."""

    zstd_level: int = Field(default=15, ge=1, le=19)
    """Zstandard compression level of trajectories. A higher level gives smaller data and takes longer."""

    durability: Literal["process", "machine"] = "process"
    """What trajectories survive that a gateway or the ledger has acknowledged: with `process` the death of the process;
    with `machine` also a power cut of the machine, which costs a disk sync for each group of trajectories."""

    spool_mib: int = Field(default=256, ge=16, le=1_048_576)
    """Disk space in MiB that each region's gateway has for results that the trainer has not committed yet. When it is
    full, the region's workers pause."""

    chain_versions: int = Field(default=8, ge=1, le=256)
    """Number of versions that each region's gateway keeps as deltas on top of its full copy of the weights. A reader at
    most that far behind gets the deltas that it lacks; any other reader gets the full copy."""

    check_engine_every_versions: int = Field(default=10, ge=1, le=MAX_COUNT)
    """Every so many versions, and after each recovery, a worker hashes the tensors that its engine holds and compares
    the engine's log-probabilities of fixed prompts with the trainer's."""


class PlanSection(Config):
    """How the job is placed on the regions."""

    method: Literal["auto", "exact", "static"] = "auto"
    """`auto` takes the placement with the shortest time per step, by the planner's model of the measured regions and
    links, and proves it optimal where time allows. `exact` does the same with the exact method alone. `static` uses no
    model: it puts the trainer where new versions spread from fastest, and rollout workers in every region with room."""

    objective: Literal["time", "cost"] = "time"
    """What a plan minimises: `time`, the seconds of a step, or `cost`, the dollars an hour with steps of at most
    max_step_s. Dollars need prices of accelerators."""

    max_step_s: float | None = Field(default=None, ge=1e-6, le=1e7)
    """Largest number of seconds of a step, with objective cost."""

    max_usd_per_hour: float | None = Field(default=None, ge=1e-6, le=1e7)
    """Largest rent with egress, in dollars an hour, with objective time."""

    workers_per_region: int | None = Field(default=None, ge=1, le=1024)
    """Number of rollout workers in each region that has any. null: one on cores, and on accelerators as many as the
    plan finds worth it."""


class RegionsSection(Config):
    """The regions in which the job may run."""

    min: int = Field(default=1, ge=1, le=1024)
    """The job waits until this number of usable regions have joined."""

    trainer: str | None = Field(default=None, min_length=1)
    """Region that must host the trainer; with null the planner chooses."""

    rollout: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(default=None, min_length=1)
    """The regions that host rollout workers: all of these and no others. With null, every region that does not slow the
    job down, also one that joins while the job runs."""

    max: int | None = Field(default=None, ge=1, le=1024)
    """Largest number of regions that the job uses; null for no limit."""

    forbid: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Regions where no part of the job may run, for example because data must not go there."""


class FailureSection(Config):
    """When work is taken from a worker, and when a worker or a group is given up."""

    lease_timeout_s: float = Field(default=60.0, gt=0, le=86_400)
    """Seconds after which a leased sample that did not come back is leased to another worker. The worker whose lease
    expired gets one lease at a time until it returns a result, and one more for each result."""

    max_sample_attempts: int = Field(default=3, ge=1, le=100)
    """Number of attempts at one sample before its group is given up. An attempt ends when a worker that had started the
    sample fails, dies, or does not finish it within lease_timeout_s. Waiting in a worker's queue is not an attempt."""

    on_overrun: Literal["hold", "abandon"] = "hold"
    """What to do when a batch is complete but older samples are missing that would be too old after this step. `hold`
    makes the trainer wait for them, up to max_hold_s. `abandon` drops them at once, which favours short answers.
    Abandoned samples are counted by length."""

    max_hold_s: float = Field(default=600.0, ge=0, le=86_400)
    """Largest number of seconds that a step waits for older samples."""

    hedge: bool = True
    """Whether a sample whose worker has fallen silent is leased a second time to another worker, if the trainer waits
    and another worker has room. The first valid result is trained on. So a region that stands still costs its own share
    of the job's speed. With false its samples are waited for until lease_timeout_s or max_hold_s."""

    max_worker_restarts: int = Field(default=3, ge=0, le=1000)
    """Number of times that one worker is restarted before it counts as failed. One whose reward functions
    cannot be loaded, or only ever fail, is not restarted."""

    max_trainer_restarts: int = Field(default=3, ge=0, le=1000)
    """Number of times that a trainer that died starts again from the newest checkpoint, counted since that checkpoint.
    One that would fail again in the same way does not. With 0 the job fails at once, and is resumed by hand."""

    max_region_absence_s: float = Field(default=900.0, gt=0, le=604_800)
    """Seconds for which a job waits for the agent of its trainer's region to come back. Then the job fails."""


class CheckpointSection(Config):
    """The checkpoints from which a run can be resumed."""

    every_steps: int = Field(default=50, ge=0, le=MAX_COUNT)
    """Write a checkpoint before the first step and after every so many steps. With 0 only after the last step."""

    keep: int = Field(default=2, ge=1, le=1000)
    """Number of newest checkpoints that stay on disk."""

    replicate: str = NO_REPLICA
    """Where else the newest checkpoint is kept: a URL of fsspec such as s3://BUCKET/PREFIX, or file:///DIRECTORY if all
    regions share it; or a region whose agent has a `--replica-store`. If the trainer's region stays away, the job goes
    on from there in another region. Agents need fsspec's package for the scheme, and its credentials. `none` keeps
    checkpoints only in the trainer's region: if that is lost, the job is lost, except for what was copied from
    there."""


class OutputSection(Config):
    """Where the run writes its results."""

    dir: str = Field(default="runs", min_length=1)
    """Directory in which the run makes its own directory, which is named by the job's id. A relative one is below that
    of the trainer's agent."""

    trajectories_mib: int = Field(default=1024, ge=0, le=1 << 30)
    """MiB of trajectories that the run's directory keeps for the audit after a checkpoint covers them. The oldest are
    removed first. Trajectories that no checkpoint covers yet are always kept."""

    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Trackers that get every record of metrics.jsonl too, each at most once. Their files are in `trackers/` of the
    run's directory. wandb is offline unless the trainer's environment sets WANDB_MODE. A tracker needs the extra of its
    name, such as `periplus[wandb]`, where the trainer runs."""


class JobFile(Config):
    """A Periplus job: train one model with reinforcement learning across regions."""

    name: Annotated[str, Words("of up to 63 letters a-z, digits and -, beginning with a letter or digit")] = Field(
        pattern=r"^[a-z0-9][a-z0-9-]{0,62}$"
    )
    """Short name of the job: at most 63 lower-case letters, digits and hyphens."""

    model: ModelSection = ModelSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    data: DataSection = DataSection()
    environment: EnvironmentSection | None = None
    """The task that makes the problems, or an environment that answers the model. Exactly one of environment.name,
    data.path and data.sources is given."""
    reward: RewardSection = RewardSection()
    sampling: SamplingSection = SamplingSection()
    engine: EngineSection = EngineSection()
    optimizer: OptimizerSection = OptimizerSection()
    train: TrainSection = TrainSection()

    staleness: int = Field(default=2, ge=0, le=1000)
    """Largest staleness of a token that is trained on, in versions: the version that the step starts from minus the
    version that sampled the token. 0 makes training synchronous."""

    steps: int = Field(default=200, ge=0, le=MAX_COUNT)
    """Number of training steps of the reinforcement learning. With 0 the job warms up, if it has train.warmup, and
    evaluates once; without problems of its own it evaluates the sets of eval.sets alone."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of all random numbers of the job."""

    eval: EvalSection = EvalSection()
    network: NetworkSection = NetworkSection()
    plan: PlanSection = PlanSection()
    regions: RegionsSection = RegionsSection()
    failure: FailureSection = FailureSection()
    checkpoint: CheckpointSection = CheckpointSection()
    output: OutputSection = OutputSection()

    secrets: dict[VariableName, SecretName] = Field(default_factory=dict, max_length=32)
    """Secrets of the regions that the job's processes get: the environment variable of each, such as HF_TOKEN, and the
    secret's name in the policies of the regions' owners (docs/owners.md). A region without a secret of that name runs
    no part of the job."""

    @property
    def evaluates_alone(self) -> bool:
        """Whether the job has no problems of its own, but only those of evaluation sets."""
        has_problems = bool(self.data.datasets) or self.environment is not None
        return self.steps == 0 and bool(self.eval.sets) and not has_problems and self.train.warmup is None

    @property
    def has_own_code(self) -> bool:
        """Whether code of the user's own runs on workers: reward functions or an environment."""
        return self.reward.has_own_code or (self.environment is not None and self.environment.has_own_code)

    @property
    def code_digests(self) -> dict[str, str]:
        """The digest of each file of the user's own code, by the path under which it travels."""
        return {**(self.environment.code_digests if self.environment else {}), **self.reward.code_digests}

    def learning_rate(self, step: int) -> float | None:
        """Return the learning rate of step `step`, counted from 0; None if transformers has the job's schedule."""
        optimizer = self.optimizer
        if optimizer.schedule not in tuple(Decay):
            return None
        return learning_rate(
            step,
            num_steps=self.steps,
            peak=optimizer.lr,
            ramp_steps=optimizer.warmup_steps,
            decay=Decay(optimizer.schedule),
            floor=optimizer.floor,
        )

    def to_json(self) -> str:
        """Return the job with its schema as one line of JSON, the form in which it is sent to the services.

        Keys that are null by default, and are null, are left out: a service of an earlier version refuses jobs with
        keys that it does not know, and shall read those that do not use them.
        """
        tree = loading.without_absent(self, self.model_dump(mode="json"))
        return json.dumps({"schema": SCHEMA, **tree}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "JobFile":
        """Return the resolved job of a text that `to_json` made. Raises: ConfigError."""
        tree = loading.check_schema(loading.parse_json(text, "job"), SCHEMA, "job")
        return resolve(loading.validate(cls, tree, "job", _ELSEWHERE), "job")


_ELSEWHERE: loading.KnownElsewhere = {**UNSUPPORTED, **KNOWN_ELSEWHERE}


def load_job(path: Path, overrides: Sequence[str] = ()) -> JobFile:
    """Read a job file, apply the overrides, validate and resolve it, and make it independent of the current directory.

    The digests of the user's own code, which travels with the job, are filled in.
    Raises: ConfigError if the file or the code cannot be read, or if the job is not valid.
    """
    return job_of(_job_tree(path), overrides, str(path), path.absolute().parent)


def job_of(
    tree: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "the job", folder: Path | None = None
) -> JobFile:
    """Return the job of a job file's keys and values, as `load_job` does.

    The user's own code is looked for in `folder`, by default the current directory. Raises: ConfigError.
    """
    job = resolve(loading.of_tree(JobFile, tree, source, overrides, _ELSEWHERE), source)
    return _with_locations(job, folder or Path.cwd())


def recorded_job(path: Path) -> JobFile:
    """Return the job of a run from its `config.yaml`.

    Raises: NotFound if the file does not exist, ConfigError if it holds no valid job.
    """
    if not path.is_file():
        raise NotFound(f"{path} does not exist, so the run's job is not known; give the directory of a complete run")
    tree = _recorded_tree(loading.read_yaml(path, MAX_FILE_BYTES), str(path))
    return resolve(loading.validate(JobFile, tree, str(path), _ELSEWHERE), str(path))


def changed_job(job: JobFile, file: Path | None, overrides: Sequence[str]) -> JobFile:
    """Return the job with the keys changed that a job file and overrides give. Raises: ConfigError."""
    tree, output = job.model_dump(mode="json"), job.output
    source = "the overrides"
    if file is not None:
        source = str(file)
        tree = loading.overlay(JobFile, tree, _job_tree(file))
    tree = loading.override(JobFile, tree, overrides, _ELSEWHERE)
    job = resolve(loading.validate(JobFile, tree, source, _ELSEWHERE), source)
    located = _with_locations(job, Path.cwd() if file is None else file.absolute().parent)
    # A run may lie in a folder that is really named `~`, from before this was expanded.
    return located if job.output.dir != output.dir else located.model_copy(update={"output": output})


def _job_tree(path: Path) -> loading.Tree:
    """Return the keys of a job file. A file that a run recorded has a schema, which must be the known one."""
    tree = loading.read_yaml(path, MAX_FILE_BYTES)
    file_kinds.need_kind(tree, str(path), ("job",))
    return _recorded_tree(tree, str(path)) if "schema" in tree else tree


def _recorded_tree(tree: loading.Tree, source: str) -> loading.Tree:
    known = loading.check_schema(tree, SCHEMA, source)
    # Runs from before output.trackers have recorded this key, which had no other value.
    if known.get("trackers") == ["jsonl"]:
        del known["trackers"]
    return known


def _with_locations(job: JobFile, folder: Path) -> JobFile:
    # Paths become absolute, except that of the output, which may be relative to the trainer's agent. Names of the Hub
    # get the commit that the cache has, a template's file becomes its text. Code of the user's own, which is looked for
    # beside the job file in `folder`, gets its digests.
    updates: dict[str, Any] = {}
    if not job.model.path.startswith(BUILTIN_PREFIX):
        updates |= located(job.model.path, job.model.revision, "model", "model.path")
    template = job.model.chat_template
    if template is not None and template.endswith(TEMPLATE_SUFFIX):
        updates["chat_template"] = loading.read_text(
            Path(expanded_path(template, "model.chat_template")), MAX_TEMPLATE_CHARACTERS
        )
    reference = job.algorithm.kl_reference
    if reference is not None:
        found = located(reference, None, "model", "algorithm.kl_reference")
        reference = "@".join(filter(None, (found["path"], found.get("revision"))))
    folders = (folder, Path.cwd())
    data = {} if job.data.path is None else located(job.data.path, job.data.revision, "dataset", "data.path")
    sources = tuple(
        each.model_copy(update=located(str(each.path), each.revision, "dataset", f"data.sources.{number}.path"))
        for number, each in enumerate(job.data.sources)
    )
    return job.model_copy(
        update={
            "model": job.model.model_copy(update=updates),
            "algorithm": job.algorithm.model_copy(update={"kl_reference": reference}),
            "data": job.data.model_copy(update={**data, "sources": sources}),
            "eval": job.eval.model_copy(update={"sets": _located_sets(job)}),
            "environment": job.environment and reward_code.resolved_code(job.environment, folders),
            "reward": reward_models.resolved_models(reward_code.resolved_code(job.reward, folders)),
            "output": job.output.model_copy(update={"dir": expanded_path(job.output.dir, "output.dir")}),
        }
    )


def _located_sets(job: JobFile) -> dict[str, EvalSet]:
    sets = dict(job.eval.sets)
    for name, each in sets.items():
        if each.data is not None:
            key = f"eval.sets.{name}.data.path"
            found = located(str(each.data.path), each.data.revision, "dataset", key)
            sets[name] = each.model_copy(update={"data": each.data.model_copy(update=found)})
    return sets


def resolve(job: JobFile, source: str = "job") -> JobFile:
    """Check that the keys of a job agree with each other, and return the job with dependent defaults filled in.

    Raises: ConfigError with every disagreement, one per line, each after `source`.
    """
    if refusals := _disagreements(job):
        raise ConfigError("\n".join(f"{source}: {refusal}" for refusal in refusals))
    filled = algorithm.filled_in(
        job.algorithm, max_new_tokens=job.sampling.max_new_tokens, optimizer_lr=job.optimizer.lr
    )
    job = job.model_copy(update={"algorithm": filled})
    if not makes_problems(job.environment):
        return job
    # Only a generated data set has a size to choose; it must leave problems to train on.
    size = job.data.size or DEFAULT_SIZE
    taken = job.eval.num_prompts + (job.train.warmup.num_examples if job.train.warmup else 0)
    if taken >= size:
        raise ConfigError(
            f"{source}: data.size is {size}, but eval.num_prompts and train.warmup.num_examples already take {taken}; "
            "raise data.size, so that problems are left to train on"
        )
    return job.model_copy(update={"data": job.data.model_copy(update={"size": size})})


def _replica_disagreements(job: JobFile) -> list[str]:
    base, refusals = job.checkpoint.replicate, list[str]()
    if base == NO_REPLICA:
        return refusals
    try:
        if not names_region(base):
            check_replica_url(base)
    except ConfigError as error:
        refusals.append(f"checkpoint.replicate: {error}")
    if not job.checkpoint.every_steps:
        refusals.append(
            "checkpoint.replicate is given and checkpoint.every_steps is 0, so there is no checkpoint to replicate "
            "before the job's end; set checkpoint.every_steps"
        )
    if job.regions.trainer is not None:
        refusals.append(
            f"checkpoint.replicate is given and regions.trainer is {job.regions.trainer}, so the job could go on "
            "nowhere else; leave one of them out"
        )
    return refusals


def _disagreements(job: JobFile) -> list[str]:
    refusals = []
    if not job.evaluates_alone:
        refusals += data_disagreements(job.data, has_environment=makes_problems(job.environment))
    refusals += [
        f"eval.sets.{name} has no problems of its own, and the job holds none out; give it data or an environment"
        for name, each in job.eval.sets.items()
        if job.evaluates_alone and each.data is None and each.environment is None
    ]
    refusals += model_disagreements(job.model)
    if job.environment:
        if not _is_finite(job.environment.config):
            refusals.append("environment.config holds a number that is infinite or NaN; give finite numbers")
        refusals += [
            f"environment.config.{key} is set, but the job decides it: set {job_key} instead"
            for key, job_key in (("seed", "seed"), ("size", "data.size"))
            if key in job.environment.config and makes_problems(job.environment)
        ]
        refusals += environment_disagreements(job.environment, scores_alone=job.reward.is_verifier_alone)
    refusals += algorithm.disagreements(
        job.algorithm, staleness=job.staleness, max_new_tokens=job.sampling.max_new_tokens
    )
    plays_episodes = job.environment is not None and job.environment.has_turns
    refusals += eval_disagreements(job.eval, max_new_tokens=job.sampling.max_new_tokens, plays_episodes=plays_episodes)
    refusals += engine_section.disagreements(job.engine, workers_per_region=job.plan.workers_per_region)
    refusals += reward_section.disagreements(job.reward)
    if (job.sampling.expected_tokens or 0.0) > job.sampling.max_new_tokens:
        refusals.append(
            f"sampling.expected_tokens is {job.sampling.expected_tokens:g}, but completions have at most "
            f"sampling.max_new_tokens = {job.sampling.max_new_tokens}; lower the one or raise the other"
        )
    if job.model.lora is not None and job.train.devices > 1:
        refusals.append(
            f"model.lora is given and train.devices is {job.train.devices}, but adapters are trained on one device; "
            "set train.devices=1"
        )
    if job.model.lora is not None and job.train.warmup is not None:
        refusals.append(
            "model.lora and train.warmup are both given, but the warm-up would change the weights under the adapters, "
            "which no checkpoint holds; warm up in a job without model.lora, and give its final/ as model.path"
        )
    refusals += optimizer_disagreements(job.optimizer, devices=job.train.devices)
    refusals += _replica_disagreements(job)
    if job.train.minibatches > job.train.groups_per_step:
        refusals.append(
            f"train.minibatches is {job.train.minibatches}, but train.groups_per_step is only "
            f"{job.train.groups_per_step}, and a group is never divided; lower train.minibatches"
        )
    update_samples = job.train.groups_per_step // max(1, job.train.minibatches) * job.algorithm.group_size
    if job.train.devices > max(1, update_samples):
        refusals.append(
            f"train.devices is {job.train.devices}, but an update has only {update_samples} samples, so some devices "
            "would have nothing to do; lower train.devices or train.minibatches, or raise train.groups_per_step"
        )
    # The journal's line of a step lists each sample, and lines have a greatest length.
    num_samples = job.train.groups_per_step * job.algorithm.group_size
    if num_samples > MAX_SAMPLES_PER_STEP:
        refusals.append(
            f"train.groups_per_step x algorithm.group_size is {num_samples} samples a step; at most "
            f"{MAX_SAMPLES_PER_STEP} can be recorded: lower one of the two"
        )
    refusals += [
        f"output.trackers has {name} more than once; name each tracker once"
        for name in sorted(set(job.output.trackers))
        if job.output.trackers.count(name) > 1
    ]
    refusals += _region_refusals(job)
    refusals += secret_refusals(job.secrets)
    refusals += [
        f"plan.{key} is {value}, but plan.objective is {job.plan.objective}; leave it out, or set plan.objective={of}"
        for key, value, of in (
            ("max_step_s", job.plan.max_step_s, "cost"),
            ("max_usd_per_hour", job.plan.max_usd_per_hour, "time"),
        )
        if value is not None and job.plan.objective != of
    ]
    return refusals


def _is_finite(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _region_refusals(job: JobFile) -> list[str]:
    refusals, rollout, most = [], job.regions.rollout, job.regions.max
    # Regions that the job names for a role.
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
        # Without a trainer's region, the trainer may go to one more region than those for rollout.
        room = len(used) + (job.regions.trainer is None)
        if job.regions.min > room:
            refusals.append(
                f"regions.min is {job.regions.min}, but regions.trainer and regions.rollout allow only {room}"
            )
    return refusals


def job_schema() -> dict[str, Any]:
    """Return the JSON schema of the job file, for editors and for `periplus/schemas/job.schema.json`."""
    schema = JobFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": SCHEMA, **schema}
