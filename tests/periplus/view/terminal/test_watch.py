import asyncio
import io
import itertools
import re
from collections.abc import AsyncIterator

import pytest
from rich.console import Console

from periplus.errors import Unreachable
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.view.state import Event, RecordSeen, ViewState
from periplus.view.terminal.watch import watch
from tests.support import sample_run


async def stream(events: list[Event], error: Exception | None = None) -> AsyncIterator[Event]:
    for event in events:
        yield event
    if error:
        raise error


def watched(live: bool, *, terminal: bool, error: Exception | None = None) -> tuple[ViewState, str]:
    file = io.StringIO()
    console = Console(file=file, width=100, height=30, force_terminal=terminal, legacy_windows=False)
    state = asyncio.run(watch(stream(list(sample_run.events()), error), console, live))
    return state, file.getvalue()


def test_without_a_terminal_lines_are_written_even_if_live_was_asked_for() -> None:
    state, text = watched(True, terminal=False)
    assert state.step == sample_run.STEPS
    assert "step 120/120" in text
    assert "\x1b" not in text


def test_plain_output_has_no_escape_codes_on_a_terminal_either() -> None:
    assert "\x1b" not in watched(False, terminal=True)[1]


def test_a_burst_is_painted_a_few_times_and_the_last_picture_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    state, text = watched(True, terminal=True)
    assert state.ended
    assert text.count("regions") < 20
    assert "step 120 of 120" in text.rpartition("regions")[0][-2000:]


def test_the_time_since_the_last_record_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    file, times = io.StringIO(), iter(range(0, 100_000, 30))
    console = Console(file=file, width=100, height=30, force_terminal=True)
    asyncio.run(watch(stream(list(sample_run.events())[:5]), console, True, now_s=lambda: float(next(times))))
    assert max(clocks(file.getvalue())) >= 30


def clocks(text: str) -> list[int]:
    """Return the seconds that the heads of the pictures showed, one after the other."""
    shown = re.findall(r"policy .*?(\d+):(\d\d)", text)
    return [60 * int(minutes) + int(seconds) for minutes, seconds in shown]


def phase(text: str, time_s: float, at_s: float = 0.0) -> RecordSeen:
    return RecordSeen(Record(kind=RecordKind.PHASE, policy=Policy(0, 0), time_s=time_s, text=text), at_s)


@pytest.mark.parametrize("times_s", [[1.0, 6.0, 0.1, 4.0, 7.0], [3.0, 0.0, 2.0, 9.0]])
def test_the_clock_never_goes_back_whatever_times_records_carry(
    times_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    file, times = io.StringIO(), itertools.count()
    console = Console(file=file, width=100, height=30, force_terminal=True)
    events: list[Event] = [phase(f"phase {i}", time_s) for i, time_s in enumerate(times_s)]
    asyncio.run(watch(stream(events), console, True, now_s=lambda: float(next(times))))
    shown = clocks(file.getvalue())
    assert shown == sorted(shown)
    assert len(shown) > 2


@pytest.mark.parametrize("live", [True, False])
def test_an_error_of_the_stream_comes_through_as_it_is(live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(Unreachable, match="gone"):
        watched(live, terminal=True, error=Unreachable("coordinator gone"))


def test_a_cancelled_watch_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")

    async def silent() -> AsyncIterator[Event]:
        await asyncio.Event().wait()
        yield sample_run.fleet(0, 0)

    async def scenario() -> None:
        console = Console(file=io.StringIO(), force_terminal=True)
        task = asyncio.create_task(watch(silent(), console, True))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(scenario(), 5))
