"""Plain lines about a watched job, for a pipe, a log file or a CI page: ASCII text without escape codes.

There is a line for each change of state or phase, each evaluation, each violation or digest mismatch, and each region
that connects or disconnects. A step gets a line every 10 steps or 5 seconds of the job's own time, and one with what
the job's plan predicts of a step beside what was measured. `advance` is pure
and returns the lines; `watch` prints them.
"""

from dataclasses import dataclass, replace
from typing import assert_never

from periplus.values.record import Record, RecordKind
from periplus.view import units
from periplus.view.set_scores_text import held_out_text, scores_text
from periplus.view.state import Event, FleetSeen, JobChanged, RecordSeen, ViewState, printable
from periplus.view.terms import figure

EVERY_STEPS = 10
"""Steps after which the next step gets a line. Chosen by hand."""
EVERY_S = 5.0
"""Seconds of the job's time after which the next step gets a line. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The last step that got a line, and its time."""

    step: int = 0
    time_s: float = 0.0


def advance(said: Said, before: ViewState, event: Event, after: ViewState) -> tuple[Said, tuple[str, ...]]:
    """Return the lines for one event, given the states before and after it, and the last step with a line."""
    match event:
        case JobChanged():
            if (before.job_state, before.reason) == (after.job_state, after.reason):
                return said, ()
            # Without a reason of its own a job's line says what it does, until the trainer reports phases.
            doing = after.activities[-1].text if after.activities and not after.phase and not after.ended else ""
            reason = f": {after.reason or doing}" if after.reason or doing else ""
            return said, (_line(after, f"job {after.name or after.job_id} {after.job_state}{reason}"),)
        case FleetSeen():
            return said, _region_lines(before, after)
        case RecordSeen():
            return _advance_record(said, before, event.record, after)
    assert_never(event)


def _advance_record(said: Said, before: ViewState, record: Record, after: ViewState) -> tuple[Said, tuple[str, ...]]:
    match record.kind:
        case RecordKind.PHASE:
            return said, (_line(after, f"phase {after.phase}"),) if after.phase != before.phase else ()
        case RecordKind.EVAL:
            prompts = units.short(record.values.get("num_prompts"))
            scores = held_out_text(record.values)
            return said, (_line(after, f"{printable(record.text)} training: {scores} on {prompts} prompts"),)
        case RecordKind.EVAL_SET:
            return said, (_line(after, f"evaluation {printable(record.text)}: {scores_text(record.values)}"),)
        case RecordKind.STEP:
            return _advance_step(said, before, after)
        case RecordKind.NOTICE:
            return said, (_line(after, f"NOTICE: {after.notice}"),) if after.notice != before.notice else ()
        case RecordKind.REPLICA:
            return said, (_line(after, f"checkpoint {record.policy} has a replica at {printable(record.text)}"),)
        case RecordKind.WARMUP | RecordKind.SUMMARY:
            return said, ()
    assert_never(record.kind)


def _advance_step(said: Said, before: ViewState, after: ViewState) -> tuple[Said, tuple[str, ...]]:
    if after.last_step_policy == before.last_step_policy:
        return said, ()
    lines = list(_broken_promises(before, after))
    last = after.step == after.steps_total
    restored = after.step < said.step
    due = after.step - said.step >= EVERY_STEPS or after.time_s - said.time_s >= EVERY_S
    if due or last or restored or not before.rewards:
        said = replace(said, step=after.step, time_s=after.time_s)
        lines.append(_line(after, _step(after)))
        lines += _terms(after)
    return said, tuple(lines)


def _step(state: ViewState) -> str:
    total = f"/{state.steps_total}" if state.steps_total else ""
    bound = "" if state.staleness_bound is None else f"/{state.staleness_bound}"
    words = [
        f"step {state.step}{total}",
        f"reward {state.rewards[-1].value:.3f}" if state.rewards else "",
        f"{state.reward_failures:,} reward failures" if state.reward_failures else "",
        _held_out(state),
        f"staleness max {units.short(state.values.get('staleness_max', state.staleness_max))}{bound}",
        f"{units.short(state.values.get('tokens_per_s'))} tokens/s",
        f"WAN {units.size(state.wan_bytes)}",
    ]
    return "  ".join(word for word in words if word)


def _terms(state: ViewState) -> list[str]:
    words = [
        f"{printable(each.name)} {figure(each.predicted, each.unit) or units.UNKNOWN}/{measured}"
        for each in state.terms
        if (measured := figure(each.measured, each.unit))
    ]
    return [_line(state, f"predicted/measured: {', '.join(words)}")] if words else []


def _held_out(state: ViewState) -> str:
    if not state.accuracies:
        return ""
    newest = state.accuracies[-1]
    if newest.value is None:
        return "" if newest.reward is None else f"held-out reward {newest.reward:.3g}"
    return f"accuracy {units.percent(newest.value)}"


def _broken_promises(before: ViewState, after: ViewState) -> tuple[str, ...]:
    counts = (
        ("tokens older than the bound", before.staleness_violations, after.staleness_violations),
        ("weight digest mismatches", before.weight_digest_mismatches, after.weight_digest_mismatches),
    )
    return tuple(_line(after, f"BROKEN PROMISE: {now} {what}") for what, was, now in counts if now > was)


def _region_lines(before: ViewState, after: ViewState) -> tuple[str, ...]:
    known = {region.name: region.state for region in before.regions}
    changed = (region for region in after.regions if known.get(region.name) != region.state)
    return tuple(_line(after, f"region {region.name} {region.state}") for region in changed)


def _line(state: ViewState, text: str) -> str:
    return f"{units.clock(state.time_s):>7}  {text}"
