"""Certificates over real connections: who gets through, and who does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from periplus import clock
from periplus.errors import ConfigError, Denied, NotFound, Unreachable
from periplus.net import parties, rpc
from periplus.net.certificates import (
    IDENTITY_FILE,
    LIFETIME_S,
    FleetAuthority,
    Identity,
    authority_within,
    certificate_digest,
    new_key,
    signing_request,
)
from periplus.net.join_token import JoinToken, member_of
from periplus.net.joining import server_certificate
from periplus.net.parties import COORDINATOR, Party, PartyKind, Rights, check_not_revoked, party_of

NOW_S = clock.unix_s()
AUTHORITY = FleetAuthority.generate("fleet", NOW_S)
EU, US = parties.region("eu"), parties.region("aws:us-east-1")
PARTIES = (
    COORDINATOR,
    EU,
    US,
    parties.task("eu", "sums-1", "trainer"),
    parties.operator("ann lee/é", Rights.VIEWER),
    parties.joining(US),
)


@asynccontextmanager
async def served(
    identity: Identity, admit: rpc.Admission | None = None, calls: rpc.OpenCalls | None = None
) -> AsyncIterator[str]:
    """A server whose call `Whom` answers who called, and whose call `Wait` lasts for ever."""

    async def whom(request: bytes, context: Any) -> bytes:
        return str(rpc.caller(context)).encode()

    async def wait(request: bytes, context: Any) -> bytes:
        await asyncio.sleep(60)
        return b""

    methods: Any = {
        "Whom": grpc.unary_unary_rpc_method_handler(whom),
        "Wait": grpc.unary_unary_rpc_method_handler(wait),
    }
    server = rpc.server(admit, calls)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", methods),))
    address = rpc.bind(server, "127.0.0.1:0", rpc.ServerIdentity(current=lambda: identity))
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


async def called(address: str, secured: rpc.Secured | None, method: str = "Whom") -> str:
    async with rpc.channel(address, secured) as channel:
        with rpc.remote_errors(address):
            call: Any = channel.unary_unary(f"/test/{method}")
            return str((await call(b"", timeout=10)).decode())


def identity(party: Party, by: FleetAuthority = AUTHORITY, lifetime_s: float = LIFETIME_S) -> Identity:
    return by.identity(party, NOW_S, lifetime_s)


@pytest.mark.parametrize("party", PARTIES)
def test_a_party_is_known_by_its_certificate(party: Party) -> None:
    async def run() -> None:
        async with served(identity(COORDINATOR)) as address:
            secured = rpc.Secured(identity=identity(party), peer=COORDINATOR)
            assert await called(address, secured) == str(party)

    assert party_of(party.uri) == party == identity(party).party
    asyncio.run(run())


def test_nobody_else_gets_through() -> None:
    other = FleetAuthority.generate("fleet", NOW_S)
    strange = other.identity(EU, NOW_S)
    callers = {
        "none": None,
        "of another fleet": rpc.Secured(
            identity=Identity(key=strange.key, certificate=strange.certificate, authority=AUTHORITY.certificate),
            peer=COORDINATOR,
        ),
        "expired": rpc.Secured(identity=identity(EU, lifetime_s=-1.0), peer=COORDINATOR),
        "to another party": rpc.Secured(identity=identity(EU), peer=US),
        "that trusts another fleet": rpc.Secured(identity=strange, peer=COORDINATOR),
    }

    async def run() -> None:
        async with served(identity(COORDINATOR)) as address:
            for secured in callers.values():
                with pytest.raises(Unreachable):
                    await called(address, secured)

    asyncio.run(run())


def test_a_member_that_is_revoked_loses_its_open_calls() -> None:
    revocations: dict[str, float] = {}

    def admit(call: rpc.Call) -> None:
        assert call.party is not None
        check_not_revoked(call.party, call.issued_at_s, revocations)

    async def run() -> None:
        calls = rpc.OpenCalls()
        async with served(identity(COORDINATOR), admit, calls) as address:
            eu, us = (rpc.Secured(identity=identity(each), peer=COORDINATOR) for each in (EU, US))
            waiting = {each: asyncio.create_task(called(address, each, "Wait")) for each in (eu, us)}
            while calls.number < 2:  # noqa: ASYNC110  # the server gets them in threads of its own
                await asyncio.sleep(0.01)
            revocations[EU.uri] = NOW_S
            calls.end_refused(admit)
            with pytest.raises(Denied, match="was revoked"):
                await waiting[eu]
            with pytest.raises(Denied, match="region eu was revoked; join again"):
                await called(address, eu)
            assert await called(address, us) == "region aws:us-east-1"
            assert not waiting[us].done()
            waiting[us].cancel()

    asyncio.run(run())


def test_a_later_certificate_of_a_revoked_party_counts() -> None:
    check_not_revoked(EU, NOW_S + 1, {EU.uri: NOW_S})
    check_not_revoked(US, NOW_S, {EU.uri: NOW_S})


def test_a_server_shows_a_new_certificate_to_new_connections() -> None:
    current = [identity(COORDINATOR)]

    async def run() -> None:
        server = rpc.server()
        address = rpc.bind(server, "127.0.0.1:0", rpc.ServerIdentity(current=lambda: current[0]))
        await server.start()
        try:
            first = await asyncio.to_thread(server_certificate, address)
            current[0] = identity(COORDINATOR)
            second = await asyncio.to_thread(server_certificate, address)
            assert first != second
            assert authority_within(second) == AUTHORITY.certificate
        finally:
            await server.stop(0)

    asyncio.run(run())


def test_an_identity_is_saved_for_its_owner_alone_and_read_again(tmp_path: Path) -> None:
    folder, made = tmp_path / "identity", identity(EU)
    with pytest.raises(NotFound):
        Identity.load(folder)
    made.save(folder)
    made.save(folder)
    assert Identity.load(folder) == made
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}
    (folder / IDENTITY_FILE).chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        Identity.load(folder)
    (folder / IDENTITY_FILE).chmod(0o600)
    (folder / IDENTITY_FILE).write_bytes(b"none")
    with pytest.raises(ConfigError, match=r"is no identity.* new token"):
        Identity.load(folder)


def test_a_request_must_be_signed_with_its_own_key() -> None:
    request = bytearray(signing_request(new_key()))
    request[-1] ^= 1
    for wrong in (b"", b"x", bytes(request)):
        with pytest.raises(Denied, match="no request for a certificate"):
            AUTHORITY.certify(wrong, EU, NOW_S)


def test_certificates_are_renewed_at_two_thirds() -> None:
    made = identity(EU)
    assert made.expires_at_s == int(NOW_S) + LIFETIME_S
    assert made.renew_at_s == int(NOW_S) + LIFETIME_S * 2 / 3


def test_a_token_is_one_line_that_nobody_can_change() -> None:
    holder = identity(parties.joining(US))
    token = JoinToken(
        address="coordinator.example.org:7070",
        authority_digest=certificate_digest(holder.authority),
        key=holder.key,
        certificate=holder.certificate,
    )
    text = token.to_text()
    assert len(text.split()) == 1
    assert JoinToken.from_text(f" {text}\n") == token
    assert member_of(token) == US
    for wrong in ("", "x", text[:-9], text.removeprefix("periplus-"), "periplus-" + "A" * 40, text + "!"):
        with pytest.raises(ConfigError, match="no join token"):
            JoinToken.from_text(wrong)
    for address in ("", "x", "..", "x:", "x:port", ":7070"):
        with pytest.raises(ConfigError, match=r"no join token .*is not HOST:PORT"):
            JoinToken.from_text(replace(token, address=address).to_text())
    with pytest.raises(ConfigError, match="more than 255 bytes"):
        replace(token, address="x" * 255 + ":7070").to_text()


@pytest.mark.parametrize(
    "uri", ["", "periplus:", "periplus:region", "periplus:king/eu", "http:region/eu", "periplus:task/a"]
)
def test_other_uris_name_no_party(uri: str) -> None:
    with pytest.raises(ValueError, match="names no party"):
        party_of(uri)


def test_names_of_servers_are_labels_of_dns() -> None:
    names = {each.server_name for each in PARTIES}
    assert len(names) == len(PARTIES)
    assert all(name.isascii() and len(name) < 64 for name in names)
    assert PartyKind.JOIN not in {EU.kind, US.kind}
