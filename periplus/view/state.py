"""What is known about a watched job: a pure fold of events into one frozen value.

`fold(state, event) -> state` has no clock, no terminal and no network; everything that is drawn comes from its result.

Invariants: the histogram counts each step once (a record at or below the newest step's policy is a repeat); curves are
those of the living lineage (a new fork replaces the steps it repeats); a link's bytes never fall (a counter that
restarts adds what it shows from then on); histories are bounded (a curve thins itself out); text from outside holds no
control characters, so that no job can write to the operator's terminal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import assert_never

from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind

# Traffic comes in bursts, one a version; shorter windows flicker between full and idle, longer ones hide a stall.
RATE_WINDOW_S = 5.0
# About ten times the dots of a wide terminal's curve: thinning is invisible.
MAX_POINTS = 4096
ENDED = frozenset({"succeeded", "failed", "cancelled"})
_START = Policy(0, 0)


MAX_ACTIVITIES = 64
"""More than any trainer has phases before its first step."""

PREPARATION = {
    "pending": "planning where to run it",
    "planned": "ordering its processes",
    "starting": "starting its processes, which import torch",
    "running": "starting its processes, which import torch",
}
"""What is done in each state of a job before its trainer speaks: nobody else says so."""

TRAINING = "training"
"""The phase while steps are coming."""


class TaskRole(StrEnum):
    TRAINER = "trainer"
    ROLLOUT = "rollout"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSeen:
    """`state` is starting, running, succeeded, failed or stopped."""

    task_id: str
    role: TaskRole
    state: str
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSeen:
    """`state` is ready or disconnected."""

    name: str
    state: str
    num_cores: int
    memory_bytes: int
    tasks: tuple[TaskSeen, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSeen:
    """`sent_bytes` counts since the sending agent's start; zero for the measurements means not measured."""

    src: str
    dst: str
    rtt_s: float
    throughput_bits_per_s: float
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanged:
    """`state` is the job state's lower-case name. `submitted_at_s` and `at_s` are on one clock, that of all events of
    the job; 0 where a source does not know them."""

    job_id: str
    name: str
    state: str
    reason: str = ""
    submitted_at_s: float = 0.0
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """A record of the trainer. `at_s` is when the coordinator got it, 0 where the source does not know that."""

    record: Record
    at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSeen:
    """`at_s` is on the clock of the job's events, which does not go back."""

    regions: tuple[RegionSeen, ...]
    links: tuple[LinkSeen, ...]
    at_s: float


Event = JobChanged | RecordSeen | FleetSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """One direction between two regions."""

    src: str
    dst: str
    rtt_s: float
    throughput_bits_per_s: float
    sent_bytes: int
    rate_bits_per_s: float
    # (at_s, counter) within the window, oldest first, never empty.
    samples: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a curve."""

    step: int
    value: float


@dataclass(frozen=True, slots=True)
class Activity:
    """What a job did before its first step, and when that began, in seconds of the view's clock."""

    text: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """One evaluation; `label` is before, during or after."""

    step: int
    value: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """Everything the renderings show. A caller that knows the job sets `steps_total` and `staleness_bound` ahead.

    `time_s` is the view's clock: it counts from `started_at_s`, which is the job's submission unless the caller sets
    it, and never goes back. Where events carry no times it is that of the newest record, from the trainer's start.
    """

    job_id: str = ""
    name: str = ""
    job_state: str = ""
    reason: str = ""
    phase: str = ""
    policy: Policy = _START
    started_at_s: float = 0.0
    time_s: float = 0.0
    # Before the first step: what was done, oldest first; the last is under way.
    activities: tuple[Activity, ...] = ()
    step: int = 0
    steps_total: int = 0
    regions: tuple[RegionSeen, ...] = ()
    links: tuple[LinkView, ...] = ()
    # Newest values of a step record, and those of the summary once it came.
    values: Mapping[str, float] = field(default_factory=dict)
    summary: Mapping[str, float] = field(default_factory=dict)
    staleness_bound: int | None = None
    staleness_tokens: Mapping[int, int] = field(default_factory=dict)
    rewards: tuple[Point, ...] = ()
    warmup_losses: tuple[Point, ...] = ()
    warmup_steps_total: int = 0
    accuracies: tuple[Accuracy, ...] = ()
    # Of each step: mean staleness of its tokens, and the fraction of its time that it waited for them.
    staleness_means: tuple[Point, ...] = ()
    wait_fractions: tuple[Point, ...] = ()
    # Sums over the steps.
    delta_bytes: float = 0.0
    full_weights_bytes: float = 0.0
    dropped_samples: int = 0
    staleness_violations: int = 0
    weight_digest_mismatches: int = 0
    last_step_policy: Policy | None = None

    @property
    def ended(self) -> bool:
        return self.job_state in ENDED

    @property
    def staleness_max(self) -> int | None:
        return max(self.staleness_tokens, default=None)

    @property
    def wan_bytes(self) -> int:
        """Sent over all links, as the gateways count."""
        return sum(link.sent_bytes for link in self.links)


def fold(state: ViewState, event: Event) -> ViewState:
    """The state after one more event."""
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
    )
    state = _at(state, event.at_s)
    doing = PREPARATION.get(state.job_state, "")
    return _doing(state, doing) if doing and not state.phase else state


def _doing(state: ViewState, text: str) -> ViewState:
    """The same with `text` under way. Steps, once there are some, say themselves what is done."""
    if state.rewards or (state.activities and state.activities[-1].text == text):
        return state
    return replace(state, activities=(*state.activities, Activity(text, state.time_s))[-MAX_ACTIVITIES:])


def printable(text: str) -> str:
    """The text without control characters and line breaks."""
    return "".join(c if c.isprintable() else " " for c in text)


def _fold_record(state: ViewState, record: Record) -> ViewState:
    values = record.values
    state = replace(
        state,
        policy=max(state.policy, record.policy),
        time_s=state.time_s if state.started_at_s else max(state.time_s, record.time_s),
    )
    if "staleness_bound" in values:
        state = replace(state, staleness_bound=int(values["staleness_bound"]))
    step = int(values.get("step", record.policy.version))
    match record.kind:
        case RecordKind.PHASE:
            return _doing(replace(state, phase=printable(record.text)), printable(record.text))
        case RecordKind.WARMUP:
            losses = _extended(state.warmup_losses, Point(step, values.get("loss", 0.0)))
            return replace(state, warmup_losses=losses, warmup_steps_total=int(values.get("steps_total", 0)))
        case RecordKind.EVAL:
            return _fold_eval(state, record, step)
        case RecordKind.STEP:
            return _fold_step(state, record, step)
        case RecordKind.SUMMARY:
            return replace(state, summary=MappingProxyType(dict(values)))
    assert_never(record.kind)


def _fold_eval(state: ViewState, record: Record, step: int) -> ViewState:
    seen = Accuracy(step=step, value=record.values.get("accuracy", 0.0), label=printable(record.text))
    kept = (a for a in state.accuracies if (a.step, a.label) != (seen.step, seen.label))
    return replace(state, accuracies=(*kept, seen)[-MAX_POINTS:])


def _fold_step(state: ViewState, record: Record, step: int) -> ViewState:
    if state.last_step_policy is not None and record.policy <= state.last_step_policy:
        return state
    values, tokens = record.values, dict(state.staleness_tokens)
    for staleness, count in record.staleness_tokens.items():
        tokens[staleness] = tokens.get(staleness, 0) + count
    reward, mean, step_s = values.get("reward_mean"), values.get("staleness_mean"), values.get("step_s")
    waited = values.get("wait_s", 0.0) / step_s if step_s else None
    return replace(
        state,
        last_step_policy=record.policy,
        phase=TRAINING,  # an evaluation between two steps has no phase that ends it
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
        staleness_violations=state.staleness_violations + int(values.get("staleness_violations", 0)),
        weight_digest_mismatches=state.weight_digest_mismatches + int(values.get("weight_digest_mismatches", 0)),
    )


def _extended(points: tuple[Point, ...], point: Point) -> tuple[Point, ...]:
    kept = points
    while kept and kept[-1].step >= point.step:
        kept = kept[:-1]
    return (*(kept[::2] if len(kept) >= MAX_POINTS else kept), point)


def _clean_region(region: RegionSeen) -> RegionSeen:
    return replace(region, name=printable(region.name), state=printable(region.state))


def _links(known: tuple[LinkView, ...], seen: tuple[LinkSeen, ...], at_s: float) -> tuple[LinkView, ...]:
    # A link that is not reported keeps its bytes and its last counter, and rests.
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
