import io
from dataclasses import replace

import pytest
from rich.console import Console

from periplus.view.state import Activity, RecordSeen, RegionSeen, ViewState, fold
from periplus.view.terminal.live import LiveView
from tests.support import sample_run
from tests.support.planner.predicted_plan import PLAN


def state_after(step: int) -> ViewState:
    state = ViewState()
    for event in sample_run.events():
        if isinstance(event, RecordSeen) and state.step == step and event.record.policy.version > step:
            break
        state = fold(state, event)
    return state


RUNNING = state_after(84)


def drawn(state: ViewState, columns: int = 100, rows: int = 30, **options: bool) -> str:
    console = Console(width=columns, height=rows, file=io.StringIO(), force_terminal=True, **options)  # type: ignore[arg-type]
    console.print(LiveView(state), end="")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def plainly(state: ViewState, columns: int = 100, rows: int = 30) -> str:
    console = Console(width=columns, height=rows, file=io.StringIO())
    console.print(LiveView(state), end="")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_picture_shows_what_an_operator_asks_for() -> None:
    text = plainly(RUNNING)
    asked = ["chain-sum", "running", "training", "policy 0.84", "step 84 of 120", "▲ trainer", "■ rollout", "152 ms"]
    asked += ["us-east-1         → asia-northeast1-a", "214", "bound 4", "59.5 %", "31.8 % → 61.4 %", "39x smaller"]
    for words in asked:
        assert words in text, words
    assert text.count("0 ✓") == 2


PLANNED = replace(
    RUNNING,
    plan=PLAN.to_tree(),
    measured={"step_s": 12.0, "tokens_per_s_region/eu": 1.0, "generation_s_region/us": 9.5},
)


def test_what_was_predicted_of_a_step_stands_beside_what_was_measured() -> None:
    none = ["publication", "-→-"]
    (step,) = (line for line in plainly(PLANNED).splitlines() if "predicted → measured" in line)
    assert step.split("measured")[1].split() == ["step", "10→12", "s", "training", "6→-", "waiting", "4→-", *none]
    (us,) = (line for line in plainly(PLANNED).splitlines() if line.startswith(" us "))
    assert us.split() == ["us", "generation", "8→9.5", "s", "weights", "2→-", "samples", "75%→-"]
    assert "predicted → measured" not in plainly(replace(PLANNED, plan={}))
    assert "predicted → measured" not in plainly(replace(PLANNED, measured={})), "before the first step"


@pytest.mark.parametrize(("columns", "rows"), [(100, 30), (80, 24), (120, 40), (200, 60), (60, 40), (40, 10)])
def test_what_was_predicted_takes_only_rows_that_charts_can_spare(columns: int, rows: int) -> None:
    lines = plainly(PLANNED, columns, rows).splitlines()
    assert len(lines) <= max(rows, len(plainly(RUNNING, columns, rows).splitlines()))
    assert max(map(len, lines)) <= columns


def test_failures_of_reward_functions_are_shown() -> None:
    assert "reward failures" not in plainly(RUNNING)
    assert "7 reward failures" in plainly(replace(RUNNING, reward_failures=7))


def test_a_notice_has_a_line_of_its_own_and_the_height_still_fits() -> None:
    noticed = replace(RUNNING, notice="no sample of the first 3 steps has a reward above 0; " + "why " * 40)
    text = plainly(noticed)
    assert " no sample of the first 3 steps has a reward above 0" in text
    assert len(text.splitlines()) <= 30


@pytest.mark.parametrize("state", [ViewState(), state_after(0), state_after(1), RUNNING, state_after(120)])
@pytest.mark.parametrize(("columns", "rows"), [(100, 30), (80, 24), (60, 32), (200, 60), (40, 10), (20, 5)])
def test_the_live_view_never_grows_wider_than_the_terminal(state: ViewState, columns: int, rows: int) -> None:
    assert max(map(len, plainly(state, columns, rows).splitlines())) <= columns


@pytest.mark.parametrize(("columns", "rows"), [(100, 30), (80, 24), (120, 40), (200, 60), (60, 40)])
def test_the_live_view_fits_the_height_of_usual_terminals(columns: int, rows: int) -> None:
    assert len(plainly(RUNNING, columns, rows).splitlines()) <= rows


def test_a_low_terminal_lists_the_busiest_links_and_says_so() -> None:
    assert "the 4 busiest of 6" in plainly(RUNNING, 80, 24)


def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in drawn(RUNNING)
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[36m" in drawn(RUNNING, color_system="standard")  # type: ignore[arg-type]


def test_a_disconnected_region_differs_without_colour() -> None:
    away = RegionSeen(name="eu", state="disconnected", num_cores=2, memory_bytes=10**9)
    text = plainly(replace(RUNNING, regions=(*RUNNING.regions[:2], away)))
    assert "○ eu" in text
    assert "disconnected" in text


def test_a_token_beyond_the_bound_is_drawn_below_it() -> None:
    text = plainly(replace(RUNNING, staleness_tokens={0: 90, 7: 10}, staleness_violations=10))
    assert text.index("bound 4") < text.index(">4")
    assert "10 ✗" in text


def test_a_large_bound_is_binned() -> None:
    text = plainly(replace(RUNNING, staleness_bound=100, staleness_tokens={0: 50, 55: 50}))
    assert "bound 100" in text
    assert text.count("50.0 %") == 2


def test_a_failure_shows_its_reason() -> None:
    assert "region eu is gone" in plainly(replace(RUNNING, job_state="failed", reason="region eu is gone"))


def test_the_bar_of_a_link_is_its_use_of_its_own_capacity() -> None:
    link = replace(RUNNING.links[0], rate_bits_per_s=0.14e6, throughput_bits_per_s=4537e6)
    idle = link_line(replace(RUNNING, links=(link,)))
    assert "<0.1 %" in idle
    assert "█" not in idle
    half = link_line(replace(RUNNING, links=(replace(link, rate_bits_per_s=4537e6 / 2),)))
    assert "50.0 %" in half
    assert half.count("█") == pytest.approx(half.count("·"), abs=1)
    full = link_line(replace(RUNNING, links=(replace(link, rate_bits_per_s=4537e6),)))
    assert "█" in full
    assert "·" not in full
    unknown = link_line(replace(RUNNING, links=(replace(link, throughput_bits_per_s=0.0),)))
    assert "█" not in unknown
    assert "·" not in unknown


def link_line(state: ViewState) -> str:
    return next(line for line in plainly(state, 120).splitlines() if "→" in line)


def test_until_the_first_step_it_says_what_is_done_and_for_how_long() -> None:
    preparing = replace(
        state_after(0),
        warmup_losses=(),
        activities=(Activity("ordering its processes", 1.0), Activity("starting its processes", 3.0)),
    )
    console = Console(width=100, height=30, file=io.StringIO())
    console.print(LiveView(preparing, 8.0), end="")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "starting its processes  0:05" in text.splitlines()[1]
    assert "0:02  ordering its processes" in text


def test_the_warm_up_says_how_far_it_is() -> None:
    warming = replace(state_after(0), activities=(Activity("warm-up", 0.0),), warmup_steps_total=100)
    assert "warm-up, step 60 of 100" in plainly(warming)


def test_the_panel_on_staleness_shows_the_mean_of_recent_steps_and_what_it_costs() -> None:
    high = plainly(RUNNING, 100, 40)
    for words in ("mean of each step  0.58", "waiting ", "dropped 0"):
        assert words in high
    low = plainly(replace(RUNNING, staleness_bound=2, staleness_tokens={0: 5, 1: 5}), 80, 24)
    assert "mean 0.58" in low
    assert "mean of each step" not in low
