import json
import sys
from pathlib import Path
from typing import Any

from bench.engine_cases.accelerator.__main__ import run_script
from bench.engine_cases.accelerator.summary import ScriptOutcome, markdown

RECORD: dict[str, Any] = {
    "bench": "gpu_pause",
    "commit": "abc",
    "machine": {"cpu": "a", "device": "H100"},
    "config": {"shape": "0.5B", "checkpoint": None, "sequences": [32, 64]},
    "results": {
        "start_s": 12.3456,
        "state_bytes": 1234567,
        "whole": {"write_s": 0.25, "peak_bytes": None},
        "pauses": [{"sequences": 32, "pause_s": 0.05}, {"sequences": 64, "pause_s": 0.125}],
        "left_out": [],
    },
    "reach": [{"name": "exposed_pause_s", "value": 0.125, "unit": "s", "op": "<=", "target": 0.1, "ok": False}],
}


def script(code: str, log: Path, limit_s: float = 20.0) -> ScriptOutcome:
    return run_script("pause", [sys.executable, "-S", "-c", code], log, limit_s)


def test_the_page_has_every_number_and_table_and_says_what_was_not_measured() -> None:
    page = markdown(
        [
            ScriptOutcome(name="pause", record=RECORD, reason="", wall_s=61.2),
            ScriptOutcome(name="sleep", record=None, reason="exit code 1: a | b\nc", wall_s=3.0),
        ]
    ).splitlines()
    assert page[0] == "# Measurements on H100"
    assert "| pause | measured | 61 |  |" in page
    assert "| sleep | not measured | 3 | exit code 1: a \\| b c |" in page
    assert "| `exposed_pause_s` | 0.125 | s | at most 0.1 | **no** |" in page
    assert "Commit abc; cpu a, device H100, shape 0.5B, sequences 32 64." in page
    assert "| `start_s` | 12.35 |" in page
    assert "| `state_bytes` | 1,234,567 |" in page
    assert "| `whole.peak_bytes` | not measured |" in page
    assert page[page.index("### pauses") + 2 :] == [
        "| sequences | pause_s |",
        "|---|---|",
        "| 32 | 0.05 |",
        "| 64 | 0.125 |",
    ]
    assert "## sleep" not in page


def test_the_last_json_line_of_a_script_is_its_record(tmp_path: Path) -> None:
    code = f"print('{{ a log line'); print({json.dumps(RECORD)!r}); print('the end')"
    outcome = script(code, tmp_path / "log")
    assert outcome.record == RECORD == outcome.as_json()
    assert outcome.reason == ""


def test_a_script_that_fails_is_not_measured_and_its_last_words_say_why(tmp_path: Path) -> None:
    ends = "import sys; print('{}'); print('Exception ignored in: x', file=sys.stderr)"
    words = "sys.stderr.write('no accelerator at hand\\n(Worker pid=1) WARNING\\nException ignored in: x\\ny\\n')"
    outcome = script(f"import sys; print('{{}}'); {words}; sys.exit(1)", tmp_path / "log")
    assert outcome.record is None
    assert outcome.reason == "exit code 1: no accelerator at hand"
    assert outcome.as_json()["not_measured"] == outcome.reason
    assert script("pass", tmp_path / "log").reason == "it printed no record"
    assert script(ends, tmp_path / "log").record == {}


def test_a_script_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    # The child holds the pipe open: it must be gone for the call to return.
    child = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])"
    outcome = script(child, tmp_path / "log", limit_s=0.3)
    assert outcome.record is None
    assert outcome.reason == "it took more than 0.3 s"
    assert outcome.wall_s < 10
