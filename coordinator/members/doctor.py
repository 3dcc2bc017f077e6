"""`periplus doctor`: looks at what a member of a fleet needs on this machine, and says what would mend what is missing.

Each check is a function that returns a `Symptom`. Nothing is changed, and no call is made that an operator who may only
look could not make. Run it where an agent runs, to see whether this machine reaches the others.
"""

import asyncio
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from coordinator.client.address import coordinator_address, coordinator_option
from coordinator.client.connection import connect
from coordinator.members.access import NO_ACCESS, Access, access_of
from periplus import clock
from periplus.cli.option_types import DirectoryToWrite
from periplus.errors import EXIT_OK, PeriplusError
from periplus.net import parties
from periplus.net.certificates import SKEW_S, Identity, certified_party, pem_of
from periplus.net.joining import server_certificate
from periplus.view.terminal.listing import Output, output_option, render_tree
from periplus.view.terminal.visible import say

EXIT_AILING = 1
"""Exit code if a check found what must be mended."""

SCHEMA = "periplus.findings/1"
"""Name and version of the format of `-o json`."""

PACKAGES = ("periplus", "grpcio", "cryptography", "torch", "transformers")
LEAST_FREE_BYTES = 20_000_000_000
"""Free bytes below which a run of a small model may fill the disk. Chosen by hand."""
SLACK_S = 5.0
"""Seconds by which the time of the last heartbeat may differ from this clock: a heartbeat is a second old at most, and
answers travel. Chosen by hand."""
DRIVER = Path("/proc/driver/nvidia/version")


class Verdict(StrEnum):
    """Result of a check: fine, to be looked at, or to be mended."""

    OK = "ok"
    LOOK = "look"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Symptom:
    """What one check found, and what would mend it; `remedy` is empty if nothing has to be."""

    check: str
    state: Verdict
    what: str
    remedy: str = ""


def of_machine(work_dir: Path, environment: Mapping[str, str]) -> Iterator[Symptom]:
    """Yield what this machine has: packages, driver, disk."""
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue  # a role that needs it installs it
    yield Symptom("versions", Verdict.OK, f"Python {sys.version.split()[0]}, {', '.join(versions)}")
    if DRIVER.exists():
        yield Symptom(
            "driver", Verdict.OK, DRIVER.read_text(encoding="utf-8").splitlines()[0].split(":", 1)[-1].strip()
        )
    elif any(Path("/dev").glob("nvidia[0-9]*")):
        remedy = "install NVIDIA's driver, and look at `dmesg`"
        yield Symptom("driver", Verdict.BAD, "there are devices of NVIDIA's, and no driver is loaded", remedy)
    else:
        yield Symptom("driver", Verdict.OK, "no GPU of NVIDIA's here: processes compute on cores")
    free = shutil.disk_usage(work_dir).free
    few = free < LEAST_FREE_BYTES
    yield Symptom(
        "disk",
        Verdict.LOOK if few else Verdict.OK,
        f"{free / 1e9:.0f} GB free in {work_dir}",
        "free some, or give the agent another --work-dir: checkpoints and samples lie there" if few else "",
    )
    if proxy := next((name for name in ("HTTPS_PROXY", "https_proxy") if environment.get(name)), ""):
        yield Symptom(
            "proxy", Verdict.LOOK, f"{proxy} is set, and Periplus uses no proxies", "connections must go directly"
        )


def of_identity(identity: Identity | None, where: str, now_s: float) -> Symptom:
    """Return what is to say of an identity, which lies `where`."""
    if identity is None:
        remedy = "`periplus login TOKEN` or `periplus agent join TOKEN`; no matter in a fleet with --plaintext"
        return Symptom("identity", Verdict.LOOK, f"none in {where}", remedy)
    left_s = identity.expires_at_s - now_s
    if left_s <= 0:
        remedy = "ask for a new token of `periplus token create`, and join or log in again"
        return Symptom("identity", Verdict.BAD, f"{identity.party}: it ended {-left_s / 86_400:.1f} days ago", remedy)
    return Symptom("identity", Verdict.OK, f"{identity.party}, for {left_s / 86_400:.1f} more days")


async def of_fleet(address: str, access: Access) -> list[Symptom]:
    """Return what can be reached from here: the coordinator, and the gateways of all regions."""
    try:
        async with connect(address, access) as remote:
            fleet = await remote.fleet()
    except PeriplusError as error:
        return [Symptom("coordinator", Verdict.BAD, str(error), "look at its log, and at firewalls in between")]
    found = [Symptom("coordinator", Verdict.OK, f"{address} answers; {len(fleet.regions)} regions")]
    ready = [region for region in fleet.regions if region.state == "ready"]
    if ready:
        found.append(of_clock(clock.unix_s() - max(region.last_seen_s for region in ready)))
    looks = (asyncio.to_thread(of_gateway, region, is_secured=access.secured is not None) for region in ready)
    found += await asyncio.gather(*looks)
    for region in fleet.regions:
        if region.state != "ready":
            remedy = "start its agent, and look at its log"
            found.append(Symptom(f"region {region.name}", Verdict.LOOK, "its agent is not connected", remedy))
    return found


def of_clock(ahead_s: float) -> Symptom:
    """Return what is to say of a clock that is so far ahead of the coordinator's."""
    if abs(ahead_s) <= SLACK_S:
        return Symptom("clock", Verdict.OK, f"as the coordinator's, within {SLACK_S:.0f} s")
    words = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the coordinator's"
    state = Verdict.BAD if abs(ahead_s) > SKEW_S else Verdict.LOOK
    return Symptom("clock", state, words, "set it by NTP: certificates are valid between two times")


def of_gateway(region: Any, *, is_secured: bool) -> Symptom:
    """Return whether a region's gateway is reached from here, and is the region's. It blocks."""
    check, address = f"region {region.name}", region.gateway_address
    remedy = "open its port for this machine, or give its agent an --advertise at which others reach it"
    if not address and region.relay:
        return Symptom(check, Verdict.OK, f"it cannot be dialled, and is reached by way of {region.relay}")
    if not address:
        remedy = "jobs over several regions leave it out: give an agent that all can dial --relay"
        return Symptom(check, Verdict.LOOK, "it cannot be dialled, and no region relays to it", remedy)
    if not is_secured:
        return Symptom(check, Verdict.OK, f"{address}, not tried: a fleet without identities is of one machine")
    try:
        party = certified_party(pem_of(server_certificate(address)))
    except PeriplusError as error:
        return Symptom(check, Verdict.BAD, f"{address} is not reached from here: {error}", remedy)
    if party != parties.region(region.name):
        return Symptom(check, Verdict.BAD, f"{address} is answered by {party}", remedy)
    return Symptom(check, Verdict.OK, f"its gateway answers at {address}")


@click.command()
@click.option("--work-dir", type=DirectoryToWrite(), default=Path(), show_default=True, help="Where runs are to lie.")
@click.option(
    "--identity",
    "identity_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of an identity: `identity` in an agent's state directory.  [default: the operator's]",
)
@output_option(Output.TABLE, Output.JSON)
@coordinator_option
def doctor(work_dir: Path, identity_dir: Path | None, output: str, coordinator: str | None) -> int:
    """Look at what a member of a fleet needs on this machine, and say what would mend what is missing.

    Exit code 0 if nothing must be mended, 1 otherwise.
    """
    address, access = coordinator_address(coordinator), NO_ACCESS
    try:
        access = access_of(address)
        own, where = access.secured.identity if access.secured else None, "the operator's folder"
        if identity_dir is not None:
            own, where = Identity.load(identity_dir), str(identity_dir)
        identity = of_identity(own, where, clock.unix_s())
    except PeriplusError as error:  # the rest can be looked at without it
        remedy = "mend the file, or join or log in again with a new token of `periplus token create`"
        identity = Symptom("identity", Verdict.BAD, str(error), remedy)
    found = [*of_machine(work_dir, os.environ), identity]
    found += asyncio.run(of_fleet(address, access))
    if output == Output.JSON:
        click.echo(
            render_tree({"schema": "periplus.findings/1", "findings": [asdict(each) for each in found]}, Output.JSON)
        )
    else:
        for each in found:
            say(f"{each.state:<4}  {each.check:<11}  {each.what}")
            if each.remedy:
                say(f"{'':<19}to mend it: {each.remedy}")
    return EXIT_AILING if any(each.state is Verdict.BAD for each in found) else EXIT_OK
