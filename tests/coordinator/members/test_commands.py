"""`periplus token`, `periplus login` and `periplus agent join`, as an operator types them."""

import asyncio
import io
from pathlib import Path

import pytest

from coordinator.members.access import access_of, identity_folder
from coordinator.members.issuing import issued_token
from periplus.__main__ import run
from periplus.errors import EXIT_OK, EXIT_USAGE
from periplus.net import parties
from periplus.net.certificates import Identity
from periplus.net.join_token import JoinToken, member_of
from region_agent.commands import _place
from tests.support.coordinator.loopback import DEADLINE_S, coordinator_with_members

DENIED = 6


def test_from_the_first_operator_to_a_region_that_has_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    state = tmp_path / "state"

    def told(*words: str, code: int = EXIT_OK) -> str:
        assert run(words) == code, capsys.readouterr()
        captured = capsys.readouterr()
        return (captured.out if code == EXIT_OK else captured.err).strip()

    def scene(address: str) -> None:
        fleet = ("--coordinator", address)
        assert "periplus login TOKEN" in told("region", "list", *fleet, code=DENIED)
        first = told("coordinator", "token", "--state-dir", str(state), "--operator", "ann", "--address", address)
        monkeypatch.setattr("sys.stdin", io.StringIO(first + "\n"))
        assert "operator ann" in told("login", "-")
        assert access_of(address).secured is not None
        told("region", "list", *fleet)
        token = told("token", "create", "eu", "--minutes", "2", *fleet)
        assert member_of(JoinToken.from_text(token)) == parties.region("eu")
        assert "agent join" in told("login", token, code=EXIT_USAGE)
        assert "is not HOST:PORT" in told("token", "create", "eu", "--address", "host", *fleet, code=EXIT_USAGE)
        assert "as region eu" in told(
            "agent", "join", told("token", "create", "eu", *fleet), "--work-dir", str(tmp_path)
        )
        assert Identity.load(tmp_path / ".periplus" / "eu" / "identity").party == parties.region("eu")
        viewer = told("token", "create", "--operator", "bob", "--rights", "viewer", *fleet)
        assert "periplus login" in told("agent", "join", viewer, "--work-dir", str(tmp_path), code=EXIT_USAGE)
        monkeypatch.setenv("PERIPLUS_IDENTITY", str(tmp_path / "bob"))
        told(
            "login",
            told(
                "coordinator",
                "token",
                "--state-dir",
                str(state),
                "--operator",
                "bob",
                "--rights",
                "viewer",
                "--address",
                address,
            ),
        )
        told("region", "list", *fleet)
        assert "may not call CreateToken" in told("token", "create", "us", *fleet, code=DENIED)
        monkeypatch.delenv("PERIPLUS_IDENTITY")
        told("token", "revoke", "bob", *fleet)
        monkeypatch.setenv("PERIPLUS_IDENTITY", str(tmp_path / "bob"))
        assert "was revoked" in told("region", "list", *fleet, code=DENIED)

    async def play() -> None:
        async with asyncio.timeout(DEADLINE_S), coordinator_with_members(state) as address:
            await asyncio.to_thread(scene, address)

    asyncio.run(play())


def test_an_agent_joins_with_the_token_of_its_environment_unless_it_is_a_member_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"

    def scene(address: str) -> None:
        monkeypatch.setenv("PERIPLUS_JOIN_TOKEN", issued_token(state, address, parties.region("eu")))
        places = [_place("", "", tmp_path, None, None, plaintext=False) for _ in range(2)]
        assert places == [("eu", address)] * 2, "the token was used once"
        (tmp_path / ".periplus" / "eu" / "identity" / "identity.pem").unlink()
        with pytest.raises(Exception, match="used already"):
            _place("", "", tmp_path, None, None, plaintext=False)
        monkeypatch.delenv("PERIPLUS_JOIN_TOKEN")
        with pytest.raises(Exception, match="join the fleet first"):
            _place("eu", "", tmp_path, None, None, plaintext=False)

    async def play() -> None:
        async with asyncio.timeout(DEADLINE_S), coordinator_with_members(state) as address:
            await asyncio.to_thread(scene, address)

    asyncio.run(play())


def test_an_identity_of_an_operator_lies_where_the_variables_say(tmp_path: Path) -> None:
    at = "a.example.org:7070"
    assert identity_folder(at, {"PERIPLUS_IDENTITY": "/x"}) == Path("/x")
    assert identity_folder(at, {"XDG_CONFIG_HOME": "/c"}) == Path("/c/periplus/members/a.example.org%3A7070")
    assert identity_folder(at, {"XDG_CONFIG_HOME": "relative"}).is_relative_to(Path.home())
