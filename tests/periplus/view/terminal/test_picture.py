import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from periplus.errors import ConfigError
from periplus.job.run_directory import RunDirectory, append_line
from periplus.view.recording import decode_fleet, encode_fleet, read_events, recorded
from periplus.view.state import Event, FleetSeen, RecordSeen, ViewState, fold
from periplus.view.terminal.picture import main
from tests.support import sample_run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "job-1")
    directory.create()

    async def keep() -> None:
        async for event in recorded(stream(), directory):
            if isinstance(event, RecordSeen):
                directory.append(event.record)

    async def stream() -> AsyncIterator[Event]:
        for event in sample_run.events(steps=30):
            yield event

    asyncio.run(keep())
    return directory


def test_a_fleet_comes_back_as_it_was_written() -> None:
    fleet = sample_run.fleet(3.5, 7)
    assert decode_fleet(encode_fleet(fleet, 2.0)) == (2.0, fleet)


def test_a_recorded_run_folds_to_what_was_watched(run: RunDirectory) -> None:
    watched, replayed = ViewState(), ViewState()
    for event in sample_run.events(steps=30):
        watched = fold(watched, event)
    for event in read_events(run):
        replayed = fold(replayed, event)
    assert replayed.links == watched.links
    assert replayed.staleness_tokens == watched.staleness_tokens
    assert any(isinstance(event, FleetSeen) for event in read_events(run))


def test_the_picture_is_an_svg_that_refers_to_nothing_outside(run: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "out.svg"
    name = "a <b x='1'> & \"c\""
    assert main([str(run.root), str(out), "--step", "20", "--name", name]) == 0
    text = out.read_text()
    root = ElementTree.fromstring(text)
    assert name in (root[0].text or "")
    assert re.findall(r"https?://[^\"]*|url\(|@font-face|href", text) == ["http://www.w3.org/2000/svg"]
    assert "step 20" in text
    assert "us-east-1" in text


def test_a_missing_run_is_an_error_message_and_a_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent"), str(tmp_path / "out.svg")]) == 3
    assert "absent" in capsys.readouterr().err


def test_a_line_that_is_no_snapshot_is_named(run: RunDirectory) -> None:
    append_line(run.fleet, '{"time_s": 1, "at_s": 1, "regions": [{"name": "x", "tasks": []}], "links": []}')
    with pytest.raises(ConfigError, match=r"fleet\.jsonl line"):
        read_events(run)
