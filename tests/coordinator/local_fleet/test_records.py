"""Where a fleet listens is found by other programs while it lives, and by none after its death."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.local_fleet.records import (
    FleetRecord,
    announced,
    chosen_fleet,
    living_fleets,
    own_process,
    process_start,
    records_folder,
)
from periplus.errors import Conflict, Denied

HOST = "here"


def record(directory: str = "/runs", **changes: object) -> FleetRecord:
    process_id, start = own_process()
    whole = FleetRecord(
        coordinator="127.0.0.1:1",
        wan="",
        regions=("local",),
        directory=directory,
        process_id=process_id,
        process_start=start,
        hostname=HOST,
        token_file="/state/fleet.token",
    )
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


def dead_process() -> tuple[int, str]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = process_start(child.pid)
    assert start is not None
    child.communicate()
    return child.pid, start


def test_a_fleet_is_found_while_it_is_announced(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "fleets"
    assert living_fleets(folder, HOST) == ()
    with announced(record("/a"), folder), announced(record("/b"), folder):
        assert [fleet.directory for fleet in living_fleets(folder, HOST)] == ["/a", "/b"]
        assert living_fleets(folder, "elsewhere") == (), "a folder may be shared with other hosts"
    assert living_fleets(folder, HOST) == ()
    assert list(folder.iterdir()) == []


def test_a_fleet_whose_process_died_is_not_found_and_the_next_one_tidies_up(tmp_path: Path) -> None:
    process_id, start = dead_process()
    (tmp_path / "old.json").write_text(record(process_id=process_id, process_start=start).to_json())
    (tmp_path / "reused-id.json").write_text(record("/x", process_start="1").to_json())
    (tmp_path / "other-host.json").write_text(record("/y", process_start="1", hostname="elsewhere").to_json())
    assert living_fleets(tmp_path, HOST) == ()
    with announced(record("/a"), tmp_path):
        assert [fleet.directory for fleet in living_fleets(tmp_path, HOST)] == ["/a"]
    assert [path.name for path in tmp_path.iterdir()] == ["other-host.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "periplus.local-fleet/2"}', '{"coordinator": 1}'])
def test_a_file_that_is_no_record_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    assert living_fleets(tmp_path, HOST) == ()


def test_a_record_survives_its_text() -> None:
    assert FleetRecord.from_json(record().to_json()) == record()


def test_of_several_fleets_the_one_around_the_working_directory_is_chosen() -> None:
    outer, inner, other = record("/w"), record("/w/inner"), record("/other")
    assert chosen_fleet((), Path("/w")) is None
    assert chosen_fleet((other,), Path("/w")) is other, "a single fleet is found from anywhere"
    assert chosen_fleet((other, outer, inner), Path("/w/inner/deep")) is inner
    assert chosen_fleet((other, outer, inner), Path("/w/else")) is outer
    with pytest.raises(Conflict, match=r"2 local fleets run here: .*/w.*/other.*--coordinator"):
        chosen_fleet((outer, other), Path("/elsewhere"))


def test_the_folder_follows_the_standard_for_states() -> None:
    home = Path("/home/me")
    assert records_folder({}, home) == home / ".local/state/periplus/fleets"
    assert records_folder({"XDG_STATE_HOME": "/s"}, home) == Path("/s/periplus/fleets")
    assert records_folder({"XDG_STATE_HOME": "relative"}, home) == home / ".local/state/periplus/fleets"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Denied, match="XDG_STATE_HOME"), announced(record(), tmp_path / "file" / "fleets"):
        pytest.fail("it was announced")


def test_a_process_that_does_not_exist_has_no_start() -> None:
    assert process_start(dead_process()[0]) is None
    assert process_start(os.getpid()) == own_process()[1]
