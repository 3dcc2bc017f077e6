"""The commands by which agents and people become members of a fleet: `periplus token` and `periplus login`."""

import asyncio

import click

from coordinator.client.address import coordinator_address, coordinator_option
from coordinator.client.connection import connect
from coordinator.members.access import access_of, identity_folder
from coordinator.members.issuing import token_text
from periplus import errors
from periplus.cli.option_types import DIALLED, given_token
from periplus.errors import ConfigError
from periplus.net.certificates import Identity, new_key, signing_request
from periplus.net.join_token import LIFETIME_S, JoinToken
from periplus.net.joining import join
from periplus.net.parties import PartyKind, Rights
from periplus.view.terminal.visible import say


@click.group()
def token() -> None:
    """Let regions and operators join a fleet, and put operators out again."""


@token.command()
@click.argument("region", metavar="[REGION]", default="")
@click.option("--operator", default="", metavar="NAME", help="Make a token for a person in place of a region.")
@click.option(
    "--rights",
    type=click.Choice([each.value for each in Rights]),
    default=Rights.OPERATOR.value,
    show_default=True,
    help="With --operator: whether the person may only look, or change jobs and regions too.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True, max=24 * 60),
    default=LIFETIME_S / 60,
    show_default=True,
    help="For how long the token can be used.",
)
@click.option(
    "--address",
    type=DIALLED,
    default="",
    metavar="HOST:PORT",
    help="Where the new member reaches the coordinator.  [default: as this command does]",
)
@coordinator_option
def create(region: str, operator: str, rights: str, minutes: float, address: str, coordinator: str | None) -> int:
    """Print a join token of REGION, for `periplus agent join`, or of a person, for `periplus login`.

    It can be used once. Whoever has it joins as what it is for: pass it on as you would a password.
    """
    found = coordinator_address(coordinator)
    access = access_of(found)
    if access.secured is None:
        raise ConfigError(f"you have no identity for the coordinator at {found}; `periplus login TOKEN` gets one")
    authority, key = access.secured.identity.authority, new_key()

    async def call() -> bytes:
        async with connect(found, access) as remote:
            return await remote.create_token(region, operator, rights, minutes * 60, signing_request(key))

    holder = Identity(key=key, certificate=asyncio.run(call()), authority=authority)
    click.echo(token_text(address or found, holder))
    return errors.EXIT_OK


@token.command()
@click.argument("operator", metavar="OPERATOR")
@coordinator_option
def revoke(operator: str, coordinator: str | None) -> int:
    """Refuse the certificates that OPERATOR has. `periplus region remove` does it for a region."""
    found = coordinator_address(coordinator)

    async def call() -> None:
        async with connect(found, access_of(found)) as remote:
            await remote.remove_operator(operator)

    asyncio.run(call())
    say(f"{operator} has no access any more")
    return errors.EXIT_OK


@click.command()
@click.argument("token_", metavar="TOKEN")
def login(token_: str) -> int:
    """Become an operator of a fleet with a TOKEN of `periplus token create --operator NAME`.

    Commands for the token's coordinator find the identity by themselves. It is valid for seven days, and any command
    from the fifth day on renews it. With - in place of TOKEN it is read from standard input.
    """
    read = JoinToken.from_text(given_token(token_))
    identity = asyncio.run(join(read))
    if identity.party.kind is not PartyKind.OPERATOR:
        raise ConfigError(f"this token is for {identity.party}; `periplus agent join` takes it")
    folder = identity_folder(read.address)
    identity.save(folder)
    say(f"{identity.party} of the fleet of {read.address}; the identity lies in {folder}")
    return errors.EXIT_OK
