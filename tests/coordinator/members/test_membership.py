"""Members of a fleet against a real coordinator: joining, what each may call, revocation, and a restored database."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.client.connection import Coordinator, connect
from coordinator.members.access import Access
from coordinator.members.issuing import issued_identity, issued_token, token_text
from coordinator.members.membership import Membership
from coordinator.store import back_up, open_store, restore, stored_fleet_authority
from periplus import clock
from periplus.errors import ConfigError, Denied, NotFound, PeriplusError, Unreachable
from periplus.net import parties, rpc
from periplus.net.certificates import Identity, certified_party, issued_at_s, new_key, signing_request
from periplus.net.join_token import JoinToken
from periplus.net.joining import join
from periplus.net.parties import COORDINATOR, Party, Rights
from periplus.pb.v1 import control_pb2, control_pb2_grpc
from region_agent.control.identity import AgentIdentity
from tests.support.coordinator.loopback import DEADLINE_S, FakeAgent, coordinator_with_members, submission

EU, US = parties.region("eu"), parties.region("us")
ANN, BOB = parties.operator("ann", Rights.OPERATOR), parties.operator("bob", Rights.VIEWER)

CALLS: dict[str, Any] = {
    "GetFleet": control_pb2.GetFleetRequest(),
    "ListJobs": control_pb2.ListJobsRequest(),
    "GetJob": control_pb2.GetJobRequest(job_id="j"),
    "SubmitJob": control_pb2.SubmitJobRequest(job_json="{}"),
    "CancelJob": control_pb2.CancelJobRequest(job_id="j"),
    "OrderRegion": control_pb2.OrderRegionRequest(region="eu", order="drain"),
    "CreateToken": control_pb2.CreateTokenRequest(region="x"),
    "RemoveOperator": control_pb2.RemoveOperatorRequest(operator="nobody"),
    "Join": control_pb2.JoinRequest(),
    "Renew": control_pb2.JoinRequest(),
}
LOOKS = {"GetFleet", "ListJobs", "GetJob", "Renew"}


def play(folder: Path, scene: Callable[[str], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), coordinator_with_members(folder) as address:
            await scene(address)

    asyncio.run(run())


def to_coordinator(identity: Identity) -> rpc.Secured:
    return rpc.Secured(identity=identity, peer=COORDINATOR)


def as_operator(folder: Path, party: Party = ANN) -> Access:
    return Access(secured=to_coordinator(issued_identity(folder, party)))


async def refusals(address: str, identity: Identity) -> set[str]:
    """Return the calls that a member may not make."""
    found = set()
    async with rpc.channel(address, to_coordinator(identity)) as channel:
        for method, request in CALLS.items():
            try:
                with rpc.remote_errors(address):
                    await getattr(control_pb2_grpc.CoordinatorStub(channel), method)(request, timeout=10)
            except Denied as error:
                if "may not call" in str(error):
                    found.add(method)
            except PeriplusError:  # of what was asked, which was nonsense
                continue
    return found


def test_each_party_may_call_what_is_its_own(tmp_path: Path) -> None:
    async def scene(address: str) -> None:
        may = {
            ANN: CALLS.keys() - {"Join"},
            BOB: LOOKS,
            EU: set(),
            parties.joining(EU): {"Join"},
            parties.task("eu", "j", "trainer"): set(),
            COORDINATOR: set(),
        }
        for party, methods in may.items():
            identity = issued_identity(tmp_path, party)
            assert CALLS.keys() - await refusals(address, identity) == methods, party
        for region, party in (("eu", ANN), ("us", EU)):
            secured = to_coordinator(issued_identity(tmp_path, party))
            with pytest.raises(Denied):
                async with FakeAgent(address, region, secured=secured):
                    pass
        with pytest.raises(Denied, match="answers only members"):
            async with connect(address):
                pass

    play(tmp_path, scene)


def test_a_region_is_told_which_operator_submitted_a_job(tmp_path: Path) -> None:
    async def scene(address: str) -> None:
        eu = to_coordinator(issued_identity(tmp_path, EU))
        async with connect(address, as_operator(tmp_path)) as ann, FakeAgent(address, "eu", secured=eu) as agent:
            job = await ann.submit(submission(plan={"method": "static"}))
            await agent.until_desired()
            assert agent.jobs[job.job_id].operator == "ann"

    play(tmp_path, scene)


def test_a_token_makes_one_member_once(tmp_path: Path) -> None:
    async def scene(address: str) -> None:
        async with connect(address, as_operator(tmp_path)) as remote:
            token = await new_token(tmp_path, remote, region="eu")
            identity = await join(token)
            assert identity.party == EU
            with pytest.raises(Denied, match="used already"):
                await join(token)
            async with FakeAgent(address, "eu", secured=to_coordinator(identity)):
                assert [each.name for each in (await remote.fleet()).regions] == ["eu"]
            person = await join(await new_token(tmp_path, remote, operator="bob", rights="viewer"))
            assert person.party == BOB
            told = [event async for event in remote.events("", "", follow=False)]
            assert [(each.text, each.actor) for each in told if each.kind == "members_changed"] == [
                ("a join token for region eu, valid for 60 s", "operator ann"),
                ("region eu joined", "region eu"),
                ("a join token for operator bob, valid for 60 s", "operator ann"),
                ("operator bob joined", "operator bob"),
            ]
            for wrong in ({"region": "eu", "operator": "bob"}, {"region": "a/b"}, {"operator": "x", "rights": "king"}):
                with pytest.raises(ConfigError):
                    await new_token(tmp_path, remote, **wrong)

    play(tmp_path, scene)


async def new_token(
    folder: Path, remote: Coordinator, region: str = "", operator: str = "", rights: str = ""
) -> JoinToken:
    key = new_key()
    certificate = await remote.create_token(region, operator, rights, 60, signing_request(key))
    holder = Identity(key=key, certificate=certificate, authority=stored_fleet_authority(folder).certificate)
    return JoinToken.from_text(token_text(remote.address, holder))


def test_a_token_that_was_made_before_a_removal_or_is_too_old_makes_no_member(tmp_path: Path) -> None:
    async def scene(address: str) -> None:
        async with connect(address, as_operator(tmp_path)) as remote:
            token = await new_token(tmp_path, remote, operator="bob", rights="viewer")
            await remote.remove_operator("bob")
            with pytest.raises(Denied, match="was revoked"):
                await join(token)
        holder = issued_identity(tmp_path, parties.joining(EU), lifetime_s=-1.0)
        with pytest.raises(Denied, match=r"of region eu is too old; make another"):
            await join(JoinToken.from_text(token_text(address, holder)))

    play(tmp_path, scene)


def test_somebody_in_between_is_noticed_before_the_token_is_shown(tmp_path: Path) -> None:
    async def scene(address: str) -> None:
        text = issued_token(tmp_path, address, EU)
        async with coordinator_with_members(tmp_path / "other") as other:
            token = JoinToken.from_text(text)
            moved = JoinToken(
                address=other, authority_digest=token.authority_digest, key=token.key, certificate=token.certificate
            )
            with pytest.raises(Denied, match="of another fleet than the token"):
                await join(moved)

    play(tmp_path, scene)


def test_a_region_that_is_removed_is_out_at_once_and_comes_back_with_a_new_token(tmp_path: Path) -> None:
    async def scene(address: str) -> None:
        eu, us = (issued_identity(tmp_path, each) for each in (EU, US))
        async with (
            connect(address, as_operator(tmp_path)) as remote,
            FakeAgent(address, "us", secured=to_coordinator(us)) as stays,
        ):
            async with FakeAgent(address, "eu", secured=to_coordinator(eu)) as agent:
                await remote.order_region("eu", "remove")
                with pytest.raises(Denied, match="region eu was removed"):
                    await read_to_the_end(agent)
            assert [each.name for each in (await remote.fleet()).regions] == ["us"]
            with pytest.raises(Denied, match="was revoked; join again"):
                async with FakeAgent(address, "eu", secured=to_coordinator(eu)):
                    pass
            while EU.uri not in (message := await stays.read()).revocations.before_s:
                pass
            assert message.revocations.before_s[EU.uri] <= clock.unix_s()
            again = await join(await new_token(tmp_path, remote, region="eu"))
            async with FakeAgent(address, "eu", secured=to_coordinator(again)):
                assert {each.name for each in (await remote.fleet()).regions} == {"eu", "us"}

    play(tmp_path, scene)


def with_operator() -> tuple[Membership, bytes]:
    """A fleet at the Unix time 1000.7, and the certificate of an operator."""
    store = open_store(None)
    membership = Membership(store, lambda: 1000.7)
    return membership, store.fleet_authority("", 1000.7).identity(ANN, 1000.7).certificate


def test_tokens_end_with_the_access_of_whoever_made_them() -> None:
    membership, ann = with_operator()
    request = signing_request(new_key())
    token = membership.token_certificate(EU, ann, request, 60.0)
    membership.revoke(ANN)
    with pytest.raises(Denied, match="was revoked"):
        membership.join(token, request)
    with pytest.raises(Denied, match="was revoked"):
        membership.token_certificate(EU, ann, request, 60.0)


def test_who_was_admitted_before_a_revocation_gets_no_certificate_after_it() -> None:
    membership, ann = with_operator()
    request = signing_request(new_key())
    token = membership.token_certificate(EU, ann, request, 60.0)
    member = membership.join(token, request)
    late = membership.token_certificate(EU, ann, request, 60.0)
    assert certified_party(membership.renew(member, request)) == EU
    membership.revoke(EU)
    with pytest.raises(Denied, match="was revoked"):
        membership.renew(member, request)
    with pytest.raises(Denied, match="was revoked"):
        membership.join(late, request)


def test_two_revocations_within_a_second_leave_no_certificate_from_between() -> None:
    membership, ann = with_operator()
    request = signing_request(new_key())
    membership.revoke(EU)
    member = membership.join(membership.token_certificate(EU, ann, request, 60.0), request)
    membership.revoke(EU)
    with pytest.raises(Denied, match="was revoked"):
        membership.admit(rpc.Call("Session", (), EU, issued_at_s(member)))


async def read_to_the_end(agent: FakeAgent) -> None:
    while True:
        await agent.read()


async def follow(remote: Coordinator, heard: asyncio.Event) -> None:
    async for _ in remote.events("", "", follow=True):
        heard.set()


def test_an_operator_who_is_put_out_may_do_nothing_more(tmp_path: Path) -> None:
    async def scene(address: str) -> None:
        async with connect(address, as_operator(tmp_path)) as ann, connect(address, as_operator(tmp_path, BOB)) as bob:
            await bob.fleet()
            heard = asyncio.Event()
            watching = asyncio.create_task(follow(bob, heard))
            await heard.wait()
            await ann.remove_operator("bob")
            with pytest.raises(Denied, match="was revoked"):
                await bob.fleet()
            with pytest.raises(Denied, match="was revoked"):
                await watching

    play(tmp_path, scene)


def test_a_name_that_nobody_can_have_is_no_name_to_put_out(tmp_path: Path) -> None:
    async def scene(address: str) -> None:
        async with connect(address, as_operator(tmp_path)) as remote:
            for name in ("", "a/b", "x" * 64, "bob\n"):
                with pytest.raises(ConfigError, match="is no name"):
                    await remote.remove_operator(name)
                with pytest.raises(ConfigError, match="is no name"):
                    await remote.order_region(name, "remove")

    play(tmp_path, scene)


def test_a_restored_coordinator_knows_its_members_and_whom_it_has_put_out(tmp_path: Path) -> None:
    before, after, file = tmp_path / "before", tmp_path / "after", tmp_path / "backup"
    members: dict[Party, Identity] = {}

    async def first(address: str) -> None:
        members.update({party: issued_identity(before, party) for party in (ANN, EU, US)})
        async with connect(address, Access(secured=to_coordinator(members[ANN]))) as remote:
            async with FakeAgent(address, "us", secured=to_coordinator(members[US])):
                pass
            await remote.order_region("us", "remove")
        back_up(before, file)

    async def second(address: str) -> None:
        async with (
            connect(address, Access(secured=to_coordinator(members[ANN]))) as remote,
            FakeAgent(address, "eu", secured=to_coordinator(members[EU])),
        ):
            assert [each.name for each in (await remote.fleet()).regions] == ["eu"]
        with pytest.raises(Denied, match="was revoked"):
            async with FakeAgent(address, "us", secured=to_coordinator(members[US])):
                pass

    play(before, first)
    restore(file, after)
    play(after, second)


def test_certificates_are_renewed_on_the_way(tmp_path: Path) -> None:
    folder, late_s = tmp_path / "ann", clock.unix_s() + 5 * 86_400

    async def scene(address: str) -> None:
        issued_identity(tmp_path, EU).save(tmp_path / "eu")
        agent = AgentIdentity(tmp_path / "eu", lambda: late_s)
        before = agent.current()
        async with FakeAgent(address, "eu", secured=agent.secured(COORDINATOR)) as session:
            request = agent.renewal_request()
            assert request is not None
            await session.send(renewal=control_pb2.RenewalRequest(request=request))
            while not (message := await session.read()).HasField("renewed"):
                pass
            agent.renewed(message.renewed.certificate)
        assert agent.current() == Identity.load(tmp_path / "eu") != before
        async with FakeAgent(address, "eu", secured=agent.secured(COORDINATOR)):
            pass

    play(tmp_path, scene)
    assert AgentIdentity(tmp_path / "eu", clock.unix_s).renewal_request() is None
    with pytest.raises(NotFound):
        AgentIdentity(folder, clock.unix_s)


def test_an_agent_that_was_away_for_too_long_says_so_until_it_has_joined_again(tmp_path: Path) -> None:
    async def scene(address: str) -> None:
        issued_identity(tmp_path, EU, lifetime_s=-1.0).save(tmp_path / "eu")
        agent = AgentIdentity(tmp_path / "eu", clock.unix_s)
        with pytest.raises(Unreachable, match=r"has ended.* join again"):
            agent.secured(COORDINATOR)
        issued_identity(tmp_path, EU).save(tmp_path / "eu")
        async with FakeAgent(address, "eu", secured=agent.secured(COORDINATOR)):
            pass

    play(tmp_path, scene)
