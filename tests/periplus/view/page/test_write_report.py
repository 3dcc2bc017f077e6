"""The page about a run, whatever its directory holds."""

import json
from pathlib import Path

import pytest
import yaml

from periplus.errors import ConfigError, NotFound
from periplus.job.run_directory import RunDirectory, append_line, write_atomically
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.view.page.write_report import write_report
from periplus.view.recording import encode_fleet
from tests.support import sample_run

UNFINISHED = "This run is unfinished"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return a run directory with more than forty steps, and nothing about its end."""
    made = RunDirectory(tmp_path / "chain-sum-1")
    made.create()
    made.config.write_text(yaml.safe_dump(sample_run.CONFIG))
    for record in sample_run.records()[:150]:
        made.append(record)
    return made


def page(run: RunDirectory) -> str:
    assert write_report(run) == run.report
    return run.report.read_text()


def ended(run: RunDirectory, state: str, message: str = "", fork: int = 0) -> None:
    write_atomically(run.outcome, json.dumps({"fork": fork, "state": state, "message": message}))


def test_a_run_that_was_killed_has_its_curves_its_steps_and_how_it_ended(run: RunDirectory) -> None:
    ended(run, "failed", "killed by <signal 9>")
    steps = run.records()[-1].policy.version
    text = page(run)
    assert f"{UNFINISHED}: failed: killed by &lt;signal 9&gt;." in text
    assert f"asks for {sample_run.STEPS} steps" in text
    assert f"{steps} training steps" in text
    assert text.count("<figure") > 5


def test_a_run_that_goes_on_or_whose_agent_died_is_not_said_to_have_ended(run: RunDirectory) -> None:
    assert f"{UNFINISHED}: not ended" in page(run)
    ended(run, "failed", "of the fork before")
    run.append(Record(kind=RecordKind.PHASE, policy=Policy(1, 0), time_s=1.0, text="loading the model"))
    assert f"{UNFINISHED}: not ended" in page(run)


def test_a_finished_run_shows_its_summary_and_no_excuse(run: RunDirectory) -> None:
    run.append(Record(kind=RecordKind.SUMMARY, policy=Policy(0, 120), time_s=99.0))
    run.summary.write_text(json.dumps({"steps": 120, "wan_bytes": 4321, "accuracy_after": 0.75}))
    ended(run, "succeeded")
    text = page(run)
    assert UNFINISHED not in text
    assert "4,321" in text


def test_a_finished_run_that_was_resumed_and_failed_at_once_is_unfinished(run: RunDirectory) -> None:
    run.append(Record(kind=RecordKind.SUMMARY, policy=Policy(0, 120), time_s=99.0))
    ended(run, "failed", "no such model", fork=1)
    assert f"{UNFINISHED}: failed: no such model." in page(run)


def test_links_come_from_the_last_picture_of_the_fleet(run: RunDirectory) -> None:
    append_line(run.fleet, encode_fleet(sample_run.last_fleet(), 9.0))
    assert "<h2>Links</h2>" in page(run)


def test_a_run_that_was_cancelled_before_it_began_has_a_page(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "j")
    run.create()
    run.config.write_text(yaml.safe_dump(sample_run.CONFIG))
    ended(run, "stopped")
    assert f"{UNFINISHED}: stopped." in page(run)


def test_what_is_no_run_has_no_page(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotFound, match="directory of a run"):
            write_report(RunDirectory(folder))
    assert not (tmp_path / "report.html").exists()


def test_a_damaged_file_is_named(run: RunDirectory) -> None:
    run.plan.write_text("{")
    with pytest.raises(ConfigError, match=r"plan\.json"):
        write_report(run)
