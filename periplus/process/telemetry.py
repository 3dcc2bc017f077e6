"""The log format of all services, and the registry of metric names.

A log line is `time level logger event key=value ...`: the time in UTC, a fixed event name, then the fields. A record is
always one line, because text with spaces, quotes or control characters is written as a JSON string. So logs can be
split by line and searched by field. Library code logs through `event`; only a process's entry point calls `configure`.

The registry lists every value that a Record, and so `metrics.jsonl`, may have, with its unit and meaning. Where there
is one value for each region, or for each part of a reward, the registry has a *family*: a name with one placeholder,
such as `tokens_per_s_region/<region>`, and what may stand there. `check_names` refuses other names. This module holds
no metric's value. `docs/metrics.md` is generated from the registry.
"""

import json
import logging
import re
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from io import TextIOBase
from types import MappingProxyType
from typing import TextIO

from periplus import errors


def event(log: logging.Logger, level: int, name: str, **fields: object) -> None:
    """Log an event with a fixed name and its fields, such as job, region, worker or policy_version."""
    log.log(level, "%s", name, extra={"fields": fields})


def configure(level: str, stream: TextIO | TextIOBase) -> None:
    """Send the records of all loggers from `level` up to `stream`, one line each; replace earlier handlers.

    Raises: ValueError for a level that logging does not know.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.handlers[:] = [handler]


class LineFormatter(logging.Formatter):
    """Formats a record as one line.

    Example: `2026-01-31T12:00:00.123Z INFO region_agent.control.session session_opened region=eu epoch=4`.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["traceback"] = "\n".join(_tracebacks(record.exc_info[1], set()))
        message = record.getMessage()
        words = [at, record.levelname, record.name, message if message.isprintable() else json.dumps(message)]
        return " ".join([*words, *(f"{key}={_field(value)}" for key, value in fields.items())])


def _tracebacks(error: BaseException | None, seen: set[int]) -> Iterator[str]:
    """Yield one traceback for each error that led to this one, the earliest first, without the groups around them."""
    for leaf in () if error is None else errors.leaves(error):
        if id(leaf) not in seen:  # an error may be raised from the group that contains it
            seen.add(id(leaf))
            yield from _tracebacks(leaf.__cause__ or (None if leaf.__suppress_context__ else leaf.__context__), seen)
            yield "".join(traceback.format_exception(leaf, chain=False)).rstrip()


def _field(value: object) -> str:
    match value:
        case BaseException():
            value = errors.explained_error(value)
        # Before numbers, because a bool is an int.
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case float():
            return f"{value:.6g}"
    text = str(value)
    # Text with spaces, quotes or `=` could be read as several fields, and a line break as another line.
    bare = text and text.isprintable() and not any(c in ' "=' for c in text)
    return text if bare else json.dumps(text)


class MetricKind(StrEnum):
    """How a metric's values combine over records: those of a counter are summed, those of a gauge are not."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry of the registry: a metric's name, unit, meaning in one sentence, and kind."""

    name: str
    unit: str
    sentence: str
    kind: MetricKind = MetricKind.GAUGE


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """Metrics that mean the same of several things, such as regions.

    Their name is `prefix`, the thing's name and `suffix`. `thing` says what it is, and `pattern` is a regular
    expression of its whole name.
    """

    prefix: str
    thing: str
    pattern: str
    suffix: str = ""
    unit: str
    sentence: str

    @property
    def shown(self) -> str:
        """The name as documents show it, such as `tokens_per_s_region/<region>`."""
        return f"{self.prefix}<{self.thing}>{self.suffix}"

    def name(self, thing: str) -> str:
        """Return the name of one metric. Raises: ValueError if nothing may be named so."""
        if not re.fullmatch(self.pattern, thing):
            raise ValueError(f"{thing[:80]!r} cannot stand in {self.shown}: it must match {self.pattern}")
        return f"{self.prefix}{thing}{self.suffix}"

    def thing_of(self, name: str) -> str | None:
        """Return what a metric's name is about, or None if the name is not of this family."""
        found = re.fullmatch(f"{re.escape(self.prefix)}({self.pattern}){re.escape(self.suffix)}", name)
        return found[1] if found else None


_C = MetricKind.COUNTER
_ALL = (
    # Where the job stands.
    Metric("step", "steps", "Training steps done; during the warm-up, supervised steps done."),
    Metric("steps_total", "steps", "Training steps that the job asked for."),
    Metric("steps", "steps", "Training steps done in the whole run."),
    # Quality.
    Metric("accuracy", "fraction", "Accuracy on the held-out prompts."),
    Metric("accuracy_before", "fraction", "Accuracy on the held-out prompts after the warm-up, before RL."),
    Metric("accuracy_after", "fraction", "Accuracy on the held-out prompts after the last step."),
    Metric("eval_reward_mean", "reward", "Mean reward of the judged samples of an evaluation."),
    Metric("eval_reward_before", "reward", "Mean reward on the held-out prompts after the warm-up, before RL."),
    Metric("eval_reward_after", "reward", "Mean reward on the held-out prompts after the last step."),
    Metric("num_prompts", "prompts", "Held-out prompts that the accuracy was measured on."),
    Metric("mean_at_k", "fraction", "Samples of an evaluation set that are right, mean over problems."),
    Metric("mean_at_k_low", "fraction", "Lower end of the 95 % interval of mean_at_k."),
    Metric("mean_at_k_high", "fraction", "Upper end of the 95 % interval of mean_at_k."),
    Metric("pass_at_k", "fraction", "Estimate that one of k samples of a problem is right, mean over problems."),
    Metric("pass_at_k_low", "fraction", "Lower end of the 95 % interval of pass_at_k."),
    Metric("pass_at_k_high", "fraction", "Upper end of the 95 % interval of pass_at_k."),
    Metric("k", "samples", "The k of pass_at_k."),
    Metric("samples_per_prompt", "samples", "Samples of each problem of an evaluation; the k of mean_at_k."),
    Metric("truncated_samples", "samples", "Samples of an evaluation that ended at the limit of their length."),
    Metric("missing_samples", "samples", "Samples of an evaluation that no worker could produce; they count as wrong."),
    Metric("oldest_version", "version", "Oldest version that sampled a token of an evaluation."),
    Metric("newest_version", "version", "Newest version that sampled a token of an evaluation."),
    Metric("unjudged_samples", "samples", "Samples that no reward function judged; they are not trained on.", _C),
    Metric("reward_mean", "reward", "Mean reward of the samples consumed."),
    Metric("reward_std", "reward", "Standard deviation of the reward of the samples consumed."),
    # Optimization.
    Metric("loss", "nats", "Training loss of the step."),
    Metric("grad_norm", "norm", "Gradient norm before clipping."),
    Metric("entropy", "nats", "Mean entropy of the policy where a token was sampled, at the sampling temperature."),
    Metric("clip_fraction", "fraction", "Tokens whose importance ratio was clipped, or that m2po masked."),
    Metric(
        "clip_fraction_low", "fraction", "The part of clip_fraction with a ratio below its range; with m2po, below 1."
    ),
    Metric(
        "clip_fraction_high", "fraction", "The part of clip_fraction with a ratio above its range; with m2po, above 1."
    ),
    Metric("approx_kl", "nats", "Estimated KL divergence from the behaviour policy to the updated one, a token."),
    Metric("mean_ratio", "ratio", "Mean importance ratio of the tokens consumed."),
    Metric("importance_weight", "ratio", "Mean importance weight of the tokens consumed, after its bounds."),
    Metric("importance_weight_max", "ratio", "Largest importance weight of a token consumed, before its bounds."),
    Metric("importance_effective_share", "fraction", "Effective sample size of the bounded weights, over the tokens."),
    Metric("cut_fraction", "fraction", "Tokens whose importance weight was truncated or masked."),
    Metric("reference_kl", "nats", "Estimated KL divergence from the policy to the frozen reference, a token."),
    Metric("value_loss", "reward^2", "Loss of the critic."),
    Metric("critic_grad_norm", "norm", "Gradient norm of the critic before clipping."),
    # Log-probabilities of the engine against the trainer's, a token: of the step's own policy, older ones, and several.
    Metric("logprob_mismatch_current_mean", "nats", "Mean difference for samples of the step's own policy."),
    Metric("logprob_mismatch_current_max", "nats", "Largest difference for samples of the step's own policy."),
    Metric("logprob_mismatch_current_kl", "nats", "Estimated KL divergence for samples of the step's own policy."),
    Metric("logprob_mismatch_current_tokens", "tokens", "Tokens compared for samples of the step's own policy.", _C),
    Metric("logprob_mismatch_stale_mean", "nats", "Mean difference for samples of one older policy."),
    Metric("logprob_mismatch_stale_max", "nats", "Largest difference for samples of one older policy."),
    Metric("logprob_mismatch_stale_kl", "nats", "Estimated KL divergence for samples of one older policy."),
    Metric("logprob_mismatch_stale_tokens", "tokens", "Tokens compared for samples of one older policy.", _C),
    Metric("logprob_mismatch_mixed_mean", "nats", "Mean difference for samples of several policies."),
    Metric("logprob_mismatch_mixed_max", "nats", "Largest difference for samples of several policies."),
    Metric("logprob_mismatch_mixed_kl", "nats", "Estimated KL divergence for samples of several policies."),
    Metric("logprob_mismatch_mixed_tokens", "tokens", "Tokens compared for samples of several policies.", _C),
    Metric("logprob_mismatch_alarms", "events", "Steps whose own policy's mismatch was above the alarm.", _C),
    Metric("sample_check_alarms", "events", "Workers whose samples were not from the weights that they named.", _C),
    Metric("sample_check_tokens", "tokens", "Completion tokens that were computed again before the step.", _C),
    Metric("reward_checks", "samples", "Samples whose rewards were computed again before the step.", _C),
    Metric("check_s", "s", "Time to compute samples again with the weights that sampled them, and rewards."),
    Metric("lr", "1/step", "Learning rate."),
    Metric("num_samples", "samples", "Samples consumed by the step.", _C),
    Metric("completion_tokens", "tokens", "Completion tokens consumed by the step.", _C),
    # Lengths.
    Metric("completion_tokens_mean", "tokens", "Mean length of the completions consumed."),
    Metric("completion_tokens_max", "tokens", "Longest of the completions consumed."),
    Metric("truncated_fraction", "fraction", "Completions consumed that ended at the limit of their length."),
    # Time.
    Metric("step_s", "s", "Wall time of the step, waiting included."),
    Metric("wait_s", "s", "Time the trainer waited for samples."),
    Metric("train_s", "s", "Time of forward, backward and optimizer."),
    Metric("planned_step_s", "s", "What the plan predicts of step_s."),
    Metric("planned_train_s", "s", "What the plan predicts of train_s."),
    Metric("planned_wait_s", "s", "What the plan predicts of wait_s."),
    Metric("publish_s", "s", "Time from the new version's snapshot until all of it was handed to the gateway."),
    Metric("snapshot_s", "s", "The part of publish_s that training waits for: rounding, and the probe."),
    Metric("encode_s", "s", "The part of publish_s in which parts of the new version were compared and encoded."),
    Metric("transfer_s", "s", "Longest time from a version's opening to its closing at a reader, since the last step."),
    Metric("apply_s", "s", "Longest time to decode a version into a reader's copy on its host, since the last step."),
    Metric("pause_s", "s", "Longest time that an engine stood still for new weights, since the last step."),
    Metric("eval_s", "s", "Time of the evaluation."),
    Metric("warmup_s", "s", "Time of the supervised warm-up."),
    Metric("problems_total", "problems", "Problems of the job's data or environment, after its filters and limits."),
    Metric("problems_filtered", "rows", "Rows of the job's data that its filters left out."),
    Metric("problems_long", "problems", "Problems left out because their prompt is longer than the job allows."),
    Metric("problems_evaluated", "problems", "Problems left out because an evaluation set has their prompt."),
    Metric("problems_repeated", "problems", "Problems left out because another one has their prompt."),
    Metric("problems_left_out", "problems", "Problems left out for any of these three reasons."),
    Metric("problems_train", "problems", "Problems that the job trains on."),
    Metric("problems_warmup", "problems", "Problems set aside for the supervised warm-up."),
    Metric(
        "changes_of_problems",
        "resumptions",
        "Resumptions that went on with other problems: held-out problems may have been trained on.",
    ),
    Metric("problems_held_out", "problems", "Problems held out for evaluations."),
    Metric("warmup_examples", "examples", "Examples the warm-up trained on."),
    Metric("wall_s", "s", "Time from launch to the end, warm-up included."),
    Metric("tokens_per_s", "tokens/s", "Completion tokens trained on a second of RL."),
    # Bytes.
    Metric("delta_bytes", "bytes", "Size of the version's published delta.", _C),
    Metric("full_weights_bytes", "bytes", "Size of the same version as a full bf16 file.", _C),
    Metric("weights_ratio", "ratio", "Size of the run's versions as full bf16 files, over what was published."),
    Metric("delta_density", "fraction", "Elements whose bits differ from the version before."),
    Metric("delta_bits_per_change", "bits", "Size of a delta for each element that differs, everything included."),
    Metric("trajectory_bytes", "bytes", "Size of the trajectories received since the last step, as sent.", _C),
    Metric("trajectory_json_bytes", "bytes", "Size of the same trajectories as JSON.", _C),
    Metric("wan_bytes", "bytes", "Payload between regions, both directions; the summary says who counted it."),
    Metric("wan_bytes_full_weights", "bytes", "The same run with full bf16 weights to each remote region and JSON."),
    Metric("wan_bytes_json", "bytes", "The part of wan_bytes_full_weights that is trajectories as JSON."),
    Metric("wan_delta_bytes", "bytes", "The part of wan_bytes that is weight deltas."),
    Metric("wan_trajectory_bytes", "bytes", "The part of wan_bytes that is trajectories."),
    # Freshness and correctness.
    Metric("staleness_max", "versions", "Largest staleness of a consumed token."),
    Metric("staleness_mean", "versions", "Mean staleness of the consumed tokens."),
    Metric("staleness_bound", "versions", "Largest staleness that the job allows."),
    Metric("staleness_violations", "tokens", "Consumed tokens older than the bound; promised: zero.", _C),
    Metric("dropped_samples", "samples", "Samples dropped because they could no longer be consumed in time.", _C),
    Metric("duplicate_samples", "samples", "Results since the last step for samples that were already in.", _C),
    Metric("refused_samples", "samples", "Results since the last step that fit no lease, are too old or invalid.", _C),
    Metric("refused_messages", "messages", "Frames and messages since the last step that were no good.", _C),
    Metric("filtered_samples", "samples", "Samples of groups whose outcomes were all equal, which were replaced.", _C),
    Metric("uniform_samples", "samples", "Samples of such groups that were not replaced; they are not trained on.", _C),
    Metric("lost_leases", "leases", "Leases since the last step that ended without their sample.", _C),
    Metric(
        "hedged_samples", "samples", "Samples leased a second time since the last step: their worker was silent.", _C
    ),
    Metric("hedge_duplicates", "samples", "Those of duplicate_samples that came by the slower of two leases.", _C),
    Metric("failed_groups", "groups", "Groups dropped since the last step as one sample's attempts all failed.", _C),
    Metric("overdue_groups", "groups", "Groups dropped since the last step as they missed samples for too long.", _C),
    Metric("reward_failures", "failures", "Times since the last step that a reward function gave no value.", _C),
    Metric("reward_timeouts", "failures", "Those of them in which the function took too long and was killed.", _C),
    Metric("reward_crashes", "failures", "Those of them in which the function's process ended.", _C),
    Metric("reward_errors", "failures", "Those of them in which the function raised an error or gave no number.", _C),
    Metric("weight_digest_mismatches", "events", "Versions whose digest differed at a reader; promised: zero.", _C),
    Metric("weight_proofs", "proofs", "Versions since the last step that a reader proved to hold.", _C),
    Metric("weight_fallbacks", "proofs", "Those of them that came as a full state or a fold, not as deltas.", _C),
    Metric("weight_checks", "proofs", "Those of them for which an engine's own tensors were hashed and probed.", _C),
    Metric("probe_mean_difference", "nats", "Mean difference of the probed log-probabilities, largest of any reader."),
    Metric("probe_max_difference", "nats", "Largest difference of a probed log-probability at a reader."),
)
METRICS = MappingProxyType({metric.name: metric for metric in _ALL})
"""The registry of single metrics, by name."""

REWARD_PART_MEAN = MetricFamily(
    prefix="reward_part/",
    thing="part",
    pattern="[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}",
    suffix="_mean",
    unit="reward",
    sentence="Mean of one part of the reward, before its weight, over the samples consumed that have it.",
)
"""Means of the parts of a reward, by the part's name."""

EVAL_REWARD_PART_MEAN = MetricFamily(
    prefix="eval_reward_part/",
    thing="part",
    pattern="[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}",
    suffix="_mean",
    unit="reward",
    sentence="Mean of one part of the reward, before its weight, over the samples of an evaluation that have it.",
)
"""Means of the parts of a reward in an evaluation, by the part's name."""

REGION_TOKENS_PER_S = MetricFamily(
    prefix="tokens_per_s_region/",
    thing="region",
    pattern="[A-Za-z0-9][A-Za-z0-9:._-]{0,62}",
    unit="tokens/s",
    sentence="The part of tokens_per_s that workers of one region sampled.",
)
"""Throughput of each region. The pattern is that of region names (periplus/values/task.py)."""

REGION_WEIGHTS_S = MetricFamily(
    prefix="weights_s_region/",
    thing="region",
    pattern=REGION_TOKENS_PER_S.pattern,
    unit="s",
    sentence="Longest time from the end of a training step until a worker of one region held its version.",
)
"""Seconds until new weights are in each region, over the proofs since the step before."""

REGION_GENERATION_S = MetricFamily(
    prefix="generation_s_region/",
    thing="region",
    pattern=REGION_TOKENS_PER_S.pattern,
    unit="s",
    sentence="Time a step in which a worker of one region had a request under way, mean over its workers.",
)
"""Busy seconds of each region's engines, over the versions that their workers reported since the step before."""

FAMILIES = (REWARD_PART_MEAN, EVAL_REWARD_PART_MEAN, REGION_TOKENS_PER_S, REGION_WEIGHTS_S, REGION_GENERATION_S)
"""The registry of families."""


def check_names(values: Iterable[str]) -> None:
    """Check that all names are in the registry. Raises: ValueError with those that are not."""
    unknown = sorted(
        name for name in set(values) - METRICS.keys() if all(family.thing_of(name) is None for family in FAMILIES)
    )
    if unknown:
        raise ValueError(f"not in the metric registry: {', '.join(unknown)}; add them to periplus/process/telemetry.py")
