from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.view.state import (
    MAX_POINTS,
    FleetSeen,
    JobChanged,
    LinkSeen,
    RecordSeen,
    ViewState,
    fold,
)
from tests.support import sample_run


def step(version: int, *, fork: int = 0, reward: float = 0.0, tokens: dict[int, int] | None = None) -> RecordSeen:
    return RecordSeen(
        Record(
            kind=RecordKind.STEP,
            policy=Policy(fork, version),
            time_s=float(version),
            values={"step": version, "reward_mean": reward},
            staleness_tokens=tokens or {},
        )
    )


def counted(at_s: float, sent_bytes: int) -> FleetSeen:
    link = LinkSeen(src="a", dst="b", rtt_s=0.1, throughput_bits_per_s=1e8, sent_bytes=sent_bytes)
    return FleetSeen(regions=(), links=(link,), at_s=at_s)


def folded(*events: RecordSeen | FleetSeen | JobChanged) -> ViewState:
    state = ViewState()
    for event in events:
        state = fold(state, event)
    return state


@given(st.lists(st.dictionaries(st.integers(0, 9), st.integers(0, 1000)), max_size=20))
def test_the_histogram_adds_up_to_the_tokens_of_all_steps(batches: list[dict[int, int]]) -> None:
    state = folded(*(step(i, tokens=tokens) for i, tokens in enumerate(batches, 1)))
    assert sum(state.staleness_tokens.values()) == sum(sum(tokens.values()) for tokens in batches)


def test_a_step_that_is_heard_again_counts_once() -> None:
    state = folded(step(1, tokens={0: 5}), step(2, tokens={1: 5}), step(1, tokens={0: 5}), step(2, tokens={1: 5}))
    assert state.staleness_tokens == {0: 5, 1: 5}
    assert [point.step for point in state.rewards] == [1, 2]


def test_a_new_fork_replaces_the_part_of_the_curve_that_it_repeats() -> None:
    state = folded(step(1, reward=1), step(2, reward=2), step(3, reward=3), step(2, fork=1, reward=9))
    assert [(point.step, point.value) for point in state.rewards] == [(1, 1), (2, 9)]
    assert state.policy == Policy(1, 2)


def test_a_rate_is_the_growth_of_the_counter_over_the_window() -> None:
    state = folded(counted(0, 0), counted(1, 1_000_000), counted(2, 2_000_000))
    assert state.links[0].rate_bits_per_s == pytest.approx(8e6)
    state = folded(*(counted(t, 1_000_000 * min(t, 10)) for t in range(30)))
    assert state.links[0].rate_bits_per_s == 0
    assert state.links[0].sent_bytes == 10_000_000
    assert len(state.links[0].samples) <= 7


def test_a_counter_that_restarts_neither_loses_bytes_nor_makes_a_negative_rate() -> None:
    state = folded(counted(0, 100), counted(1, 900), counted(2, 50), counted(3, 150))
    assert state.links[0].sent_bytes == 1050
    assert state.links[0].rate_bits_per_s == pytest.approx(800)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30))
def test_bytes_never_fall_and_rates_are_never_negative(counters: list[int]) -> None:
    state, before = ViewState(), 0
    for at_s, counter in enumerate(counters):
        state = fold(state, counted(at_s, counter))
        assert state.links[0].rate_bits_per_s >= 0
        assert state.links[0].sent_bytes >= before
        before = state.links[0].sent_bytes


def test_a_snapshot_out_of_order_is_left_out() -> None:
    assert folded(counted(5, 500), counted(4, 400)).links == folded(counted(5, 500)).links


def test_a_link_that_is_not_reported_keeps_its_bytes_and_rests_and_comes_back() -> None:
    away = folded(counted(0, 100), counted(1, 900), FleetSeen(regions=(), links=(), at_s=2))
    assert away.links[0].rate_bits_per_s == 0
    assert away.wan_bytes == 900
    assert fold(away, counted(3, 1000)).wan_bytes == 1000


def test_text_from_outside_cannot_write_to_the_terminal() -> None:
    state = folded(JobChanged(job_id="j", name="\x1b[2Jname\n", state="running", reason="\x07bell"))
    assert state.name == " [2Jname "
    assert state.reason == " bell"


def test_histories_are_bounded() -> None:
    state = folded(*(step(i) for i in range(1, MAX_POINTS + 500)))
    assert len(state.rewards) <= MAX_POINTS
    assert state.rewards[-1].step == MAX_POINTS + 499


def test_a_whole_run_ends_with_everything_known() -> None:
    state = ViewState()
    for event in sample_run.events():
        before = state
        state = fold(state, event)
        assert before is not state
    assert (state.step, state.steps_total, state.job_state) == (sample_run.STEPS, sample_run.STEPS, "succeeded")
    assert state.ended
    assert state.staleness_bound == sample_run.BOUND
    assert state.staleness_max == 3
    assert [a.label for a in state.accuracies] == ["before", "during", "during", "during", "after"]
    assert state.summary["steps"] == sample_run.STEPS
    assert len(state.links) == 6


def test_violations_and_mismatches_add_up() -> None:
    values = {
        "staleness_violations": 2.0,
        "weight_digest_mismatches": 1.0,
        "dropped_samples": 3.0,
        "reward_failures": 4.0,
    }
    events = [RecordSeen(replace(step(i).record, values=values)) for i in (1, 2)]
    state = folded(*events)
    assert (state.staleness_violations, state.weight_digest_mismatches, state.dropped_samples) == (4, 2, 6)
    assert state.reward_failures == 8


def test_a_step_ends_the_phase_of_an_evaluation_before_it() -> None:
    evaluating = RecordSeen(
        Record(kind=RecordKind.PHASE, policy=Policy(0, 1), time_s=1.0, text="evaluating during training")
    )

    assert folded(step(1), evaluating).phase == "evaluating during training"
    assert folded(step(1), evaluating, step(2)).phase == "training"


def changed(state: str, at_s: float, reason: str = "") -> JobChanged:
    return JobChanged(job_id="j", name="n", state=state, reason=reason, submitted_at_s=1000.0, at_s=at_s)


def phase(text: str, at_s: float, time_s: float = 0.0) -> RecordSeen:
    return RecordSeen(Record(kind=RecordKind.PHASE, policy=Policy(0, 0), time_s=time_s, text=text), at_s)


def test_the_clock_counts_from_the_submission_and_never_goes_back() -> None:
    events: list[RecordSeen | FleetSeen | JobChanged] = [
        changed("pending", 1000.5),
        phase("warming up", 1008.0, 6.0),
        phase("evaluating", 1009.0, 0.1),
    ]
    assert folded(*events).time_s == 9.0
    assert folded(*events, phase("late", 1004.0)).time_s == 9.0
    assert folded(*events, FleetSeen(regions=(), links=(), at_s=1012.0)).time_s == 12.0


def test_a_caller_may_let_the_clock_count_from_its_own_start() -> None:
    assert fold(ViewState(started_at_s=990.0), changed("pending", 1000.5)).time_s == 10.5


def test_without_times_of_events_the_clock_is_that_of_the_newest_record() -> None:
    assert folded(phase("a", 0.0, 3.0), phase("b", 0.0, 1.0)).time_s == 3.0


def test_what_is_done_before_the_first_step_is_kept_with_its_beginning() -> None:
    events: list[RecordSeen | FleetSeen | JobChanged] = [
        changed("pending", 1000.0, "waits for the links to be measured, 6 to go"),
        changed("pending", 1001.0, "waits for the links to be measured, 1 to go"),
        changed("planned", 1002.0),
        changed("starting", 1002.5),
        changed("running", 1003.0),
        phase("loading the model", 1006.0),
        changed("running", 1006.5),
    ]
    activities = folded(*events).activities
    assert [(each.text, each.since_s) for each in activities] == [
        ("planning where to run it", 0.0),
        ("ordering its processes", 2.0),
        ("starting its processes, which import torch", 2.5),
        ("loading the model", 6.0),
    ]
    assert folded(*events, step(1), phase("evaluating", 1020.0)).activities == activities


def test_the_steps_of_the_warm_up_are_not_those_of_the_job() -> None:
    values = {"step": 10.0, "steps_total": 200.0, "loss": 1.0}
    warming = RecordSeen(Record(kind=RecordKind.WARMUP, policy=Policy(0, 0), time_s=1.0, values=values))
    state = fold(ViewState(steps_total=40), warming)
    assert (state.steps_total, state.warmup_steps_total) == (40, 200)
