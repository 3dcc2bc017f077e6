"""State of a watched job, as a pure fold of events into one frozen `ViewState`.

`fold(state, event)` returns the next state. It has no clock, terminal or network, and every rendering draws from its
result alone. Invariants:

- The staleness histogram counts each step once; a record at or below the newest step's policy is a repeat.
- Curves show the surviving lineage: a new fork replaces the steps that it repeats.
- The bytes of a link never fall: a counter that restarted at zero is added to the bytes before.
- Histories are bounded: a curve that is too long drops every second point.
- Text from outside holds no control characters, so no job can control the operator's terminal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, assert_never

from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.view.terms import Term, mean_after, terms_of

RATE_WINDOW_S = 5.0
"""Seconds over which a link's rate is averaged. Traffic comes in one burst per version: a shorter window flickers
between full and idle, and a longer one hides a stall. Chosen by hand."""
MAX_POINTS = 4096
"""Most points of a curve: about ten times the dots that a wide terminal draws, so dropping points is invisible."""
ENDED = frozenset({"succeeded", "failed", "cancelled"})
"""States of a job that never change again."""
_START = Policy(0, 0)


MAX_ACTIVITIES = 64
"""Most activities that are kept: more than the phases of any trainer before its first step."""

WAITS = "waits for "
"""Begin of the phases by which a trainer says, each second, what samples its step waits for."""

PREPARATION = {
    "pending": "planning where to run it",
    "planned": "ordering its processes",
    "starting": "starting its processes, which import torch",
    "running": "starting its processes, which import torch",
}
"""Text of the activity for each state of a job whose trainer has not reported a phase yet."""

TRAINING = "training"
"""Name of the phase while steps are taken."""


class TaskRole(StrEnum):
    TRAINER = "trainer"
    ROLLOUT = "rollout"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSeen:
    """A process of the job, as reported. `state` is starting, running, succeeded, failed or stopped."""

    task_id: str
    role: TaskRole
    state: str
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSeen:
    """A region, as reported. `state` is ready or disconnected."""

    name: str
    state: str
    num_cores: int
    memory_bytes: int
    tasks: tuple[TaskSeen, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSeen:
    """A directed link, as reported. `sent_bytes` counts since the sender's start; 0 rtt or throughput: not measured."""

    src: str
    dst: str
    rtt_s: float
    throughput_bits_per_s: float
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanged:
    """The job changed; `state` is the lower-case name of its state.

    `submitted_at_s` and `at_s` are times on the one clock of the job's events, in seconds, or 0 if unknown. `plan` is
    the tree of its plan, empty before it has one.
    """

    job_id: str
    name: str
    state: str
    reason: str = ""
    submitted_at_s: float = 0.0
    at_s: float = 0.0
    plan: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """The trainer wrote a record. `at_s` is the time at which the coordinator received it, or 0 if unknown."""

    record: Record
    at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSeen:
    """A snapshot of the fleet was taken at `at_s`, on the clock of the job's events, which does not go back."""

    regions: tuple[RegionSeen, ...]
    links: tuple[LinkSeen, ...]
    at_s: float


Event = JobChanged | RecordSeen | FleetSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """A directed link between two regions, with its rate over the last RATE_WINDOW_S seconds."""

    src: str
    dst: str
    rtt_s: float
    throughput_bits_per_s: float
    sent_bytes: int
    rate_bits_per_s: float
    # Pairs (at_s, byte counter) within the window of the rate, oldest first, never empty.
    samples: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve over training steps."""

    step: int
    value: float


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that a job did before its first step. `since_s` is its begin, in seconds of the view's clock."""

    text: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Accuracy and mean reward of one evaluation, if known. `label` is before, during or after training."""

    step: int
    value: float | None
    reward: float | None
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetEvaluation:
    """An evaluation of a named set that began at `step`: the values of its record."""

    step: int
    name: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """Everything that the renderings show of a job.

    A caller that knows the job's configuration sets `steps_total` and `staleness_bound` in the first state.

    `time_s` is the view's clock in seconds, and never goes back. It counts from `started_at_s`, which is the submission
    of the job unless the caller sets it. If events carry no times, it is the time of the newest record since the
    trainer's start.
    """

    job_id: str = ""
    name: str = ""
    job_state: str = ""
    reason: str = ""
    phase: str = ""
    # What the trainer last said that a person should look at.
    notice: str = ""
    policy: Policy = _START
    started_at_s: float = 0.0
    time_s: float = 0.0
    # What was done before the first step, oldest first; the last activity is under way.
    activities: tuple[Activity, ...] = ()
    step: int = 0
    steps_total: int = 0
    regions: tuple[RegionSeen, ...] = ()
    links: tuple[LinkView, ...] = ()
    # Values of the newest step record, and of the summary record once it came.
    values: Mapping[str, float] = field(default_factory=dict)
    summary: Mapping[str, float] = field(default_factory=dict)
    staleness_bound: int | None = None
    staleness_tokens: Mapping[int, int] = field(default_factory=dict)
    rewards: tuple[Point, ...] = ()
    warmup_losses: tuple[Point, ...] = ()
    warmup_steps_total: int = 0
    accuracies: tuple[Accuracy, ...] = ()
    # Evaluations of named sets, in the order in which they ended.
    set_evaluations: tuple[SetEvaluation, ...] = ()
    # For each step: the mean staleness of its tokens, and the fraction of its time in which it waited for samples.
    staleness_means: tuple[Point, ...] = ()
    wait_fractions: tuple[Point, ...] = ()
    # Sums over the steps.
    delta_bytes: float = 0.0
    full_weights_bytes: float = 0.0
    dropped_samples: int = 0
    reward_failures: int = 0
    staleness_violations: int = 0
    weight_digest_mismatches: int = 0
    last_step_policy: Policy | None = None
    # The plan's tree, and means over the last steps of what it predicts, by metric, with the number of steps.
    plan: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    num_measured: int = 0

    @property
    def ended(self) -> bool:
        return self.job_state in ENDED

    @property
    def staleness_max(self) -> int | None:
        return max(self.staleness_tokens, default=None)

    @property
    def terms(self) -> tuple[Term, ...]:
        """Terms of a step, predicted and measured; none without a plan, or before the first step."""
        return terms_of(self.plan, self.measured) if self.plan and self.measured else ()

    @property
    def wan_bytes(self) -> int:
        """Bytes sent over all links, as the gateways count them."""
        return sum(link.sent_bytes for link in self.links)


def fold(state: ViewState, event: Event) -> ViewState:
    """Return the state after one more event."""
    match event:
        case JobChanged():
            return _fold_job(state, event)
        case FleetSeen():
            regions = tuple(_clean_region(region) for region in event.regions)
            state = _at(state, event.at_s)
            return replace(state, regions=regions, links=_links(state.links, event.links, event.at_s))
        case RecordSeen():
            return _fold_record(_at(state, event.at_s), event.record)
    assert_never(event)


def _at(state: ViewState, at_s: float) -> ViewState:
    if not state.started_at_s or not at_s:
        return state
    return replace(state, time_s=max(state.time_s, at_s - state.started_at_s))


def _fold_job(state: ViewState, event: JobChanged) -> ViewState:
    state = replace(
        state,
        job_id=printable(event.job_id),
        name=printable(event.name),
        job_state=printable(event.state),
        reason=printable(event.reason),
        started_at_s=state.started_at_s or event.submitted_at_s,
        plan=event.plan or state.plan,
    )
    state = _at(state, event.at_s)
    doing = PREPARATION.get(state.job_state, "")
    return _doing(state, doing) if doing and not state.phase else state


def _doing(state: ViewState, text: str) -> ViewState:
    """Begin the activity `text`, unless it is under way or steps are being taken already."""
    if state.rewards or (state.activities and state.activities[-1].text == text):
        return state
    if text.startswith(WAITS) and state.activities and state.activities[-1].text.startswith(WAITS):
        # One wait, of which the trainer tells each second.
        return replace(state, activities=(*state.activities[:-1], replace(state.activities[-1], text=text)))
    return replace(state, activities=(*state.activities, Activity(text, state.time_s))[-MAX_ACTIVITIES:])


def printable(text: str) -> str:
    """Return the text with a space in place of each control character and line break."""
    return "".join(c if c.isprintable() else " " for c in text)


def _fold_record(state: ViewState, record: Record) -> ViewState:
    values = record.values
    # With a start time the clock of events counts; without one, that of the records.
    state = replace(
        state,
        policy=max(state.policy, record.policy),
        time_s=state.time_s if state.started_at_s else max(state.time_s, record.time_s),
    )
    if "staleness_bound" in values:
        state = replace(state, staleness_bound=int(values["staleness_bound"]))
    # A record without a step has that of its policy's version.
    step = int(values.get("step", record.policy.version))
    match record.kind:
        case RecordKind.PHASE:
            return _doing(replace(state, phase=printable(record.text)), printable(record.text))
        case RecordKind.WARMUP:
            losses = _extended(state.warmup_losses, Point(step, values.get("loss", 0.0)))
            return replace(state, warmup_losses=losses, warmup_steps_total=int(values.get("steps_total", 0)))
        case RecordKind.EVAL:
            return _fold_eval(state, record, step)
        case RecordKind.EVAL_SET:
            found = SetEvaluation(step=step, name=printable(record.text), values=MappingProxyType(dict(values)))
            kept = (e for e in state.set_evaluations if (e.step, e.name) != (found.step, found.name))
            return replace(state, set_evaluations=(*kept, found)[-MAX_POINTS:])
        case RecordKind.STEP:
            return _fold_step(state, record, step)
        case RecordKind.NOTICE:
            return replace(state, notice=printable(record.text))
        case RecordKind.REPLICA:
            return state
        case RecordKind.SUMMARY:
            return replace(state, summary=MappingProxyType(dict(values)))
    assert_never(record.kind)


def _fold_eval(state: ViewState, record: Record, step: int) -> ViewState:
    values = record.values
    seen = Accuracy(
        step=step,
        value=values.get("accuracy"),
        reward=values.get("eval_reward_mean"),
        label=printable(record.text),
    )
    kept = (a for a in state.accuracies if (a.step, a.label) != (seen.step, seen.label))
    return replace(state, accuracies=(*kept, seen)[-MAX_POINTS:])


def _fold_step(state: ViewState, record: Record, step: int) -> ViewState:
    # A watcher that connects again gets some records twice.
    if state.last_step_policy is not None and record.policy <= state.last_step_policy:
        return state
    values, tokens = record.values, dict(state.staleness_tokens)
    for staleness, count in record.staleness_tokens.items():
        tokens[staleness] = tokens.get(staleness, 0) + count
    reward, mean, step_s = values.get("reward_mean"), values.get("staleness_mean"), values.get("step_s")
    # The share of the step in which the trainer waited for samples: the price of the staleness bound.
    waited = values.get("wait_s", 0.0) / step_s if step_s else None
    return replace(
        state,
        last_step_policy=record.policy,
        phase=TRAINING,  # no other record ends the phase of an evaluation between two steps
        step=step,
        steps_total=int(values.get("steps_total", state.steps_total)),
        values=MappingProxyType(dict(values)),
        staleness_tokens=MappingProxyType(dict(sorted(tokens.items()))),
        rewards=state.rewards if reward is None else _extended(state.rewards, Point(step, reward)),
        staleness_means=state.staleness_means if mean is None else _extended(state.staleness_means, Point(step, mean)),
        wait_fractions=state.wait_fractions if waited is None else _extended(state.wait_fractions, Point(step, waited)),
        delta_bytes=state.delta_bytes + values.get("delta_bytes", 0.0),
        full_weights_bytes=state.full_weights_bytes + values.get("full_weights_bytes", 0.0),
        dropped_samples=state.dropped_samples + int(values.get("dropped_samples", 0)),
        reward_failures=state.reward_failures + int(values.get("reward_failures", 0)),
        staleness_violations=state.staleness_violations + int(values.get("staleness_violations", 0)),
        weight_digest_mismatches=state.weight_digest_mismatches + int(values.get("weight_digest_mismatches", 0)),
        measured=mean_after(state.measured, state.num_measured, values),
        num_measured=state.num_measured + 1,
    )


def _extended(points: tuple[Point, ...], point: Point) -> tuple[Point, ...]:
    kept = points
    while kept and kept[-1].step >= point.step:
        kept = kept[:-1]
    return (*(kept[::2] if len(kept) >= MAX_POINTS else kept), point)


def _clean_region(region: RegionSeen) -> RegionSeen:
    return replace(region, name=printable(region.name), state=printable(region.state))


def _links(known: tuple[LinkView, ...], seen: tuple[LinkSeen, ...], at_s: float) -> tuple[LinkView, ...]:
    # A link that this snapshot does not report keeps its bytes and its last counter, at rate 0.
    views = {(link.src, link.dst): replace(link, rate_bits_per_s=0.0, samples=link.samples[-1:]) for link in known}
    before = {(link.src, link.dst): link for link in known}
    for link in seen:
        key = (printable(link.src), printable(link.dst))
        views[key] = _counted(before.get(key), link, at_s)
    return tuple(views.values())


def _counted(before: LinkView | None, link: LinkSeen, at_s: float) -> LinkView:
    samples: tuple[tuple[float, int], ...] = ((at_s, link.sent_bytes),)
    sent_bytes = link.sent_bytes
    if before is not None:
        # A counter below its last value has restarted: all that it shows now is new.
        last_s, counter = before.samples[-1]
        if at_s <= last_s:
            return before
        restarted = link.sent_bytes < counter
        sent_bytes = before.sent_bytes + link.sent_bytes - (0 if restarted else counter)
        samples = samples if restarted else _windowed((*before.samples, *samples), at_s)
    return LinkView(
        src=printable(link.src),
        dst=printable(link.dst),
        rtt_s=link.rtt_s,
        throughput_bits_per_s=link.throughput_bits_per_s,
        sent_bytes=sent_bytes,
        rate_bits_per_s=_rate_bits_per_s(samples),
        samples=samples,
    )


def _windowed(samples: tuple[tuple[float, int], ...], at_s: float) -> tuple[tuple[float, int], ...]:
    recent = sum(sample[0] >= at_s - RATE_WINDOW_S for sample in samples)
    return samples[-max(2, recent) :]


def _rate_bits_per_s(samples: tuple[tuple[float, int], ...]) -> float:
    (start_s, start), (end_s, end) = samples[0], samples[-1]
    return 8 * (end - start) / (end_s - start_s) if end_s > start_s else 0.0
