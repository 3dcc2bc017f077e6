"""A command that is given no address asks the local fleet, and the default address when none runs."""

import asyncio
from pathlib import Path

import pytest

from coordinator.client.address import DEFAULT_ADDRESS, coordinator_address, token_of
from coordinator.local_fleet.records import FleetRecord, announced, own_process, records_folder, token_file
from periplus.__main__ import run as periplus
from periplus.net.tokens import make_token, read_token
from tests.support.coordinator.loopback import Command, play_commands


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("PERIPLUS_COORDINATOR", raising=False)
    return records_folder({"XDG_STATE_HOME": str(tmp_path)}, Path())


def fleet_at(address: str, hostname: str, state: Path) -> FleetRecord:
    process_id, start = own_process()
    return FleetRecord(
        coordinator=address,
        wan="",
        regions=("local",),
        directory="/runs",
        process_id=process_id,
        process_start=start,
        hostname=hostname,
        token_file=str(token_file(Path("/runs"), state)),
    )


def test_a_name_wins_over_the_fleet_and_the_fleet_over_the_default(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    assert coordinator_address(None) == DEFAULT_ADDRESS
    with announced(fleet_at("127.0.0.1:9", "here", state), state):
        assert coordinator_address(None) == "127.0.0.1:9"
        assert coordinator_address("far:1") == "far:1"
    assert coordinator_address(None) == DEFAULT_ADDRESS


def test_commands_find_the_fleet_without_an_address(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")

    async def scene(address: str, command: Command) -> None:
        with announced(fleet_at(address, "here", state), state):
            make_token(token_file(Path("/runs"), state))
            assert await asyncio.to_thread(periplus, ["job", "list"]) == 0
            assert "no jobs yet" in capsys.readouterr().err
            # A fleet that is named, by option or variable, is asked in place of it.
            assert await asyncio.to_thread(periplus, ["job", "list", "--coordinator", "127.0.0.1:1"]) == 5
            monkeypatch.setenv("PERIPLUS_COORDINATOR", "127.0.0.1:2")
            assert await asyncio.to_thread(periplus, ["region", "list"]) == 5
            assert "127.0.0.1:2; start one with `periplus up`" in capsys.readouterr().err

    play_commands(scene)


def test_the_token_of_a_local_fleet_is_found_by_its_address(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    monkeypatch.setenv("PERIPLUS_TOKEN", "of another")
    file = token_file(Path("/runs"), state)
    with announced(fleet_at("127.0.0.1:9", "here", state), state):
        make_token(file)
        assert file.stat().st_mode & 0o777 == 0o600
        assert token_of("127.0.0.1:9") == token_of("localhost:9") == read_token(file)
        assert token_of("127.0.0.1:10") == "of another"
        monkeypatch.delenv("PERIPLUS_TOKEN")
        assert token_of("127.0.0.1:10") == ""
        make_token(state / "copied")
        monkeypatch.setenv("PERIPLUS_TOKEN_FILE", str(state / "copied"))
        assert token_of("127.0.0.1:10") == read_token(state / "copied") != read_token(file)
