"""Command that draws the live view as SVG: `python -m periplus.view.terminal.picture RUN_DIR OUT.svg [--step N]`.

It shows what a person saw at that step of a recorded run, from the run directory alone. The picture refers to no other
file, and uses common monospace fonts by name.
"""

import argparse
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from periplus import errors
from periplus.job.run_directory import RunDirectory, write_atomically
from periplus.values.record import RecordKind
from periplus.view.recording import read_events
from periplus.view.state import Event, JobChanged, RecordSeen, ViewState, fold
from periplus.view.terminal.live import LiveView
from periplus.view.terminal.terminal_svg import terminal_svg

# Colours of the picture. Text has a contrast of at least 4.5:1 with the background; lines and dots may have less.
THEME = TerminalTheme(
    (12, 20, 31),
    (211, 220, 230),
    [
        (30, 42, 58),
        (240, 113, 120),
        (126, 200, 150),
        (232, 193, 112),
        (108, 158, 222),
        (190, 150, 220),
        (86, 194, 208),
        (211, 220, 230),
    ],
    [
        (74, 92, 114),
        (240, 113, 120),
        (126, 200, 150),
        (232, 193, 112),
        (108, 158, 222),
        (190, 150, 220),
        (86, 194, 208),
        (240, 244, 248),
    ],
)


def state_at(events: Iterable[Event], step: int | None, start: ViewState) -> ViewState:
    """Return the state after `step` and all events before the next step, or the last state if `step` is None."""
    state = start
    for event in events:
        beyond = isinstance(event, RecordSeen) and event.record.kind == RecordKind.STEP and state.step == step
        if beyond and step is not None:
            break
        state = fold(state, event)
    return state


def draw(state: ViewState, *, columns: int = 100, rows: int = 30) -> str:
    """Return the live view of a state as SVG text. `columns` and `rows` are the size of the terminal in cells."""
    console = Console(width=columns, height=rows, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    lines = console.render_lines(LiveView(state), console.options, pad=False)
    return terminal_svg(lines, THEME, label=f"periplus job watch: {state.name} at step {state.step}")


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m periplus.view.terminal.picture", description=__doc__.splitlines()[0]
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--step", type=int, help="draw the moment after this step; default: the end")
    parser.add_argument("--name", help="the job's name; default: the directory's")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--rows", type=int, default=30)
    options = parser.parse_args(arguments)
    directory_name = options.run_dir.resolve().name
    name = options.name or directory_name
    job_id = directory_name if options.name else ""
    try:
        state = state_at(read_events(RunDirectory(options.run_dir)), options.step, ViewState())
        # Events do not say how the job ended, but only a run that succeeded has a summary record.
        job = JobChanged(job_id=job_id, name=name, state="succeeded" if state.summary else "running")
        write_atomically(options.out, draw(fold(state, job), columns=options.columns, rows=options.rows))
    except errors.PeriplusError as error:
        sys.stderr.write(f"error: {error}\n")
        return errors.meaning(error).exit_code
    return errors.EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
