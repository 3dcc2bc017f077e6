"""What `periplus doctor` finds on this machine, and in fleets of which something is missing."""

import asyncio
import json
from pathlib import Path

import pytest

from coordinator.members.access import NO_ACCESS, Access
from coordinator.members.doctor import (
    EXIT_AILING,
    Symptom,
    Verdict,
    of_clock,
    of_fleet,
    of_gateway,
    of_identity,
    of_machine,
)
from coordinator.members.issuing import issued_identity
from periplus import clock
from periplus.__main__ import run
from periplus.net import parties, rpc
from periplus.net.certificates import IDENTITY_FILE, LIFETIME_S, FleetAuthority
from periplus.net.parties import COORDINATOR, Rights
from periplus.pb.v1 import control_pb2
from region_agent.control.identity import AgentIdentity
from tests.support.coordinator.loopback import DEADLINE_S, FakeAgent, coordinator_with_members

EU, ANN = parties.region("eu"), parties.operator("ann", Rights.VIEWER)
NOW_S = clock.unix_s()


def verdicts(found: list[Symptom]) -> dict[str, Verdict]:
    return {each.check: each.state for each in found}


def test_a_machine_has_versions_and_a_disk(tmp_path: Path) -> None:
    found = {each.check: each for each in of_machine(tmp_path, {"HTTPS_PROXY": "http://x"})}
    assert "grpcio" in found["versions"].what
    assert {"driver", "disk"} <= found.keys()
    assert found["proxy"].state is Verdict.LOOK


def test_an_identity_is_none_good_or_too_old() -> None:
    authority = FleetAuthority.generate("fleet", NOW_S)
    assert of_identity(None, "here", NOW_S).state is Verdict.LOOK
    good = of_identity(authority.identity(EU, NOW_S), "here", NOW_S)
    assert (good.state, good.what) == (Verdict.OK, "region eu, for 7.0 more days")
    old = of_identity(authority.identity(EU, NOW_S), "here", NOW_S + LIFETIME_S + 86_400)
    assert (old.state, old.what) == (Verdict.BAD, "region eu: it ended 1.0 days ago")
    assert "token create" in old.remedy


@pytest.mark.parametrize(("ahead_s", "state"), [(0.5, "ok"), (-4.0, "ok"), (60.0, "look"), (-400.0, "bad")])
def test_a_clock_that_differs_is_named(ahead_s: float, state: str) -> None:
    assert of_clock(ahead_s).state == state


def test_each_gateway_is_tried_and_must_be_the_regions_own(tmp_path: Path) -> None:
    async def scene() -> list[Symptom]:
        async with coordinator_with_members(tmp_path) as address:
            for party in (EU, parties.region("us"), parties.region("ap")):
                issued_identity(tmp_path, party).save(tmp_path / party.name)
            access = Access(secured=rpc.Secured(identity=issued_identity(tmp_path, ANN), peer=COORDINATOR))
            identity = AgentIdentity(tmp_path / "eu", clock.unix_s)
            server = rpc.server()
            gateway = rpc.bind(server, "127.0.0.1:0", rpc.ServerIdentity(current=identity.current))
            await server.start()
            try:
                agents = {name: AgentIdentity(tmp_path / name, clock.unix_s) for name in ("eu", "us", "ap")}
                secured = {name: agent.secured(COORDINATOR) for name, agent in agents.items()}
                async with (
                    FakeAgent(address, "eu", secured=secured["eu"], gateway_address=gateway),
                    FakeAgent(address, "us", secured=secured["us"], gateway_address=gateway),
                    FakeAgent(address, "ap", secured=secured["ap"], gateway_address="127.0.0.1:1"),
                ):
                    return await of_fleet(address, access)
            finally:
                await server.stop(0)

    found = asyncio.run(asyncio.wait_for(scene(), DEADLINE_S))
    assert verdicts(found) == {
        "coordinator": "ok",
        "clock": "ok",
        "region eu": "ok",
        "region us": "bad",
        "region ap": "bad",
    }
    said = {each.check: each.what for each in found}
    assert "answered by region eu" in said["region us"]


def test_a_region_that_cannot_be_dialled_is_fine_by_way_of_a_relay_and_worth_a_look_without() -> None:
    through = of_gateway(control_pb2.Region(name="eu", relay="us"), is_secured=True)
    assert (through.state, through.what) == (Verdict.OK, "it cannot be dialled, and is reached by way of us")
    without = of_gateway(control_pb2.Region(name="eu"), is_secured=True)
    assert without.state is Verdict.LOOK
    assert "--relay" in without.remedy


def test_a_coordinator_that_does_not_answer_is_all_that_is_said_of_the_fleet() -> None:
    (found,) = asyncio.run(of_fleet("127.0.0.1:1", NO_ACCESS))
    assert (found.check, found.state) == ("coordinator", Verdict.BAD)


def test_the_command_says_what_must_be_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--coordinator", "127.0.0.1:1", "--work-dir", str(tmp_path)]
    assert run([*words, "-o", "json"]) == EXIT_AILING
    told = json.loads(capsys.readouterr().out)
    assert {each["check"] for each in told["findings"]} >= {"versions", "disk", "identity", "coordinator"}
    assert run(words) == EXIT_AILING
    assert "to mend it: " in capsys.readouterr().out


def test_an_identity_that_cannot_be_read_is_one_of_the_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / IDENTITY_FILE).write_text("junk")
    words = ["doctor", "--coordinator", "127.0.0.1:1", "--work-dir", str(tmp_path), "-o", "json"]
    for more in ([], ["--identity", str(tmp_path)], ["--identity", str(tmp_path / "none")]):
        monkeypatch.setenv("PERIPLUS_IDENTITY", str(tmp_path if not more else tmp_path / "none"))
        assert run([*words, *more]) == EXIT_AILING
        states = {each["check"]: each["state"] for each in json.loads(capsys.readouterr().out)["findings"]}
        assert (states["identity"], states["coordinator"], states["versions"]) == ("bad", "bad", "ok")
