"""Shell of the view: it folds a stream of events into a state, and shows it in a terminal until the stream ends.

Events are folded as they arrive and never queued. A live terminal is drawn at most four times a second, and once a
second if nothing arrives, so that the clock runs. The last picture stays on the screen. An error of the stream is
raised unchanged, after the terminal was restored.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from periplus.clock import monotonic_s
from periplus.view.state import Event, ViewState, fold
from periplus.view.terminal.live import LiveView
from periplus.view.terminal.plain import Said, advance

REFRESH_S = 0.25
"""Least seconds between two pictures."""
TICK_S = 1.0
"""Most seconds between two pictures: the period of the clock if nothing arrives."""


async def watch(
    events: AsyncIterator[Event],
    console: Console,
    live: bool,
    *,
    start: ViewState | None = None,
    now_s: Callable[[], float] = monotonic_s,
) -> ViewState:
    """Show the events until they end, and return the last state.

    With `live`, a terminal that can show its characters gets the live view. Otherwise plain lines are printed.
    """
    state = start or ViewState()
    if live and console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only:
        return await _watch_live(events, console, state, now_s)
    return await _watch_plain(events, console, state)


async def _watch_plain(events: AsyncIterator[Event], console: Console, state: ViewState) -> ViewState:
    said = Said()
    async for event in events:
        before, state = state, fold(state, event)
        said, lines = advance(said, before, event, state)
        for line in lines:
            console.print(Text(line), soft_wrap=True, highlight=False)
    return state


async def _watch_live(
    events: AsyncIterator[Event], console: Console, state: ViewState, now_s: Callable[[], float]
) -> ViewState:
    # `heard_s`: when the job's own time last advanced. From then on the clock of this machine goes on counting.
    heard_s, painted_s, changed, shown_s = now_s(), float("-inf"), True, 0.0
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as screen:
        # The next event is awaited as a task, so that a pause without events draws the clock and loses none.
        coming = asyncio.ensure_future(anext(events))
        try:
            while True:
                # A change is drawn soon, but not at once: many events may come together.
                if now_s() - painted_s >= (REFRESH_S if changed else TICK_S):
                    since_s = 0.0 if state.ended else now_s() - heard_s
                    shown_s = max(shown_s, state.time_s + since_s)  # the shown clock never goes back
                    screen.update(LiveView(state, shown_s), refresh=True)
                    painted_s, changed = now_s(), False
                done, _ = await asyncio.wait({coming}, timeout=REFRESH_S)
                if not done:
                    continue
                before, state = state, fold(state, coming.result())
                if state.time_s != before.time_s:
                    heard_s = now_s()
                changed = True
                coming = asyncio.ensure_future(anext(events))
        except StopAsyncIteration:
            return state
        finally:
            # The last state is drawn whatever ended the loop, since it may not have been due yet.
            coming.cancel()
            screen.update(LiveView(state, max(shown_s, state.time_s)), refresh=True)
