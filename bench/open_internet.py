"""Claim: a fleet over the open internet costs nothing, and strangers get nothing.

- `tls_cost`: completion tokens in a second of the demo's job on three regions without identities over those with
  mutual TLS on every connection. Runs alternate, and medians are compared.
- `join_s`: seconds from `periplus token create` until a new region is ready, with the commands that an operator types.
- `attacks_refused`: the attacks of strangers in `bench/doors/attacks.py`, from a machine on the fleet's network with no
  certificate, with that of another region, with one that has ended, and with one that was revoked a second ago.
- `restored_fleet_rejoins`: agents that had to join again after the coordinator's machine was lost, and another one was
  started from its backup.
- `deploy_artefacts_checked`: checks of `tests/deploy` that pass, over those that ran; checks whose tool is not
  installed are listed.
- `metrics_scrape_ms_p99`: milliseconds of a scrape of a coordinator with three regions and a job.
- `coordinator_cpu_with_10_scrapers`: its CPU seconds while ten scrapers ask it every 15 s, as Prometheus does by
  default here, over those without any.

`--only NAME` measures one of them. The last line is one JSON object, and everything else goes to stderr.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from bench.doors import attacks
from bench.doors.fleet import REGIONS, Doors, doors_of_a_fleet
from bench.experiment_cases.executed_fleets import START_S, new_home, tokens_per_s
from bench.experiment_cases.unlike_jobs import CASES, CORES
from bench.provenance import Measure, print_figures, say
from coordinator.client.connection import Coordinator, connect
from coordinator.client.submission import submission
from coordinator.local_fleet.services import Services
from coordinator.members.access import Access
from coordinator.members.issuing import issued_identity, issued_token
from periplus.net import parties, rpc
from periplus.net.certificates import Identity
from periplus.net.join_token import TOKEN_VARIABLE
from periplus.net.parties import COORDINATOR, Rights
from tests.support.processes.declared_fleet import declared_fleet, until_running
from tests.support.processes.demo import pids_of
from tests.support.tiny_job import tiny_job

STRANGERS = (
    attacks.subscribe_as_a_stranger,
    attacks.take_leases_as_a_stranger,
    attacks.train_without_the_secret,
    attacks.train_without_a_certificate,
    attacks.join_as_a_region_without_the_token,
    attacks.submit_as_another_user,
)
ATTACKERS = ("no certificate", "another region's", "one that has ended", "one that was revoked a second ago")
PAIRS, STEPS = 5, 60
SCRAPERS, SCRAPE_EVERY_S, WATCHED_S = 10, 15.0, 30.0
JOINED_S = 30.0
"""Most seconds for a region to be ready. Chosen by hand."""

TARGETS: Mapping[str, tuple[str, float, str]] = {
    "tls_cost": ("<=", 1.05, "ratio"),
    "join_s": ("<=", 5.0, "s"),
    "attacks_refused": ("==", len(STRANGERS) * len(ATTACKERS), "attacks"),
    "restored_fleet_rejoins": ("==", 0, "agents"),
    "deploy_artefacts_checked": ("==", 1.0, "fraction"),
    "metrics_scrape_ms_p99": ("<=", 50.0, "ms"),
    "coordinator_cpu_with_10_scrapers": ("<=", 1.2, "ratio"),
}
"""Operator, target and unit of each figure."""


def tls_cost() -> tuple[float, dict[str, Any]]:
    """Return tokens a second without identities over those with them, medians of pairs."""
    case, pairs = CASES["demo"], []
    with tempfile.TemporaryDirectory() as folder:
        job = case.job(Path(folder))
        for number in range(PAIRS):
            order = (True, False) if number % 2 else (False, True)  # neither is always first
            found = {
                plaintext: tokens_per_s(job, case.regions, "", case.grid(), STEPS, plaintext=plaintext)["tokens_per_s"]
                for plaintext in order
            }
            pairs.append([found[True], found[False]])
            say(f"tokens/s without and with identities: {pairs[-1]}")
    without, having = zip(*pairs, strict=True)
    return statistics.median(without) / statistics.median(having), {"tokens_per_s": pairs}


def join_s() -> tuple[float, dict[str, Any]]:
    """Return the median seconds of three regions that join."""
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as folder:
        return asyncio.run(_join_s(Path(folder)))


async def _join_s(folder: Path) -> tuple[float, dict[str, Any]]:
    services, state_dir = Services(folder), folder / "coordinator"
    try:
        words = ["coordinator", "run", "--listen", "127.0.0.1:0", "--state-dir", str(state_dir)]
        address = (await services.start("coordinator", words))["coordinator"]
        issued_identity(state_dir, parties.operator("ann", Rights.OPERATOR)).save(folder / "ann")
        variables = os.environ | {"PERIPLUS_COORDINATOR": address, "PERIPLUS_IDENTITY": str(folder / "ann")}
        access = Access(secured=rpc.Secured(identity=Identity.load(folder / "ann"), peer=COORDINATOR))
        found = []
        async with connect(address, access) as remote:
            for name in ("a", "b", "c"):
                began_s, place = time.monotonic(), ["--work-dir", str(folder / name)]
                token = await asyncio.to_thread(_command, variables, "token", "create", name)
                await asyncio.to_thread(_command, variables, "agent", "join", token, *place)
                agent = ["agent", "run", "--region", name, *place]
                starting = asyncio.create_task(services.start(f"agent-{name}", agent))
                async with asyncio.timeout(JOINED_S):
                    while name not in await _ready(remote):  # noqa: ASYNC110  # another process joins
                        await asyncio.sleep(0.05)
                found.append(time.monotonic() - began_s)
                await starting
                say(f"region {name} joined in {found[-1]:.1f} s")
        return statistics.median(found), {"seconds": found}
    finally:
        await services.stop(lambda: True)


def _command(variables: Mapping[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "periplus", *words], env=dict(variables), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr}")
    return done.stdout.strip()


def attacks_refused() -> tuple[float, dict[str, Any]]:
    """Return how many attacks were refused, and how each of them ended."""
    found = asyncio.run(_attacked())
    return sum(each is True for of in found.values() for each in of.values()), found


async def _attacked() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    async with doors_of_a_fleet() as doors:
        await doors.start(1_000_000, "prey")
        for attacker in ATTACKERS:
            identity = await _attacker(doors, attacker)
            doors.attacker = None if identity is None else rpc.Secured(identity=identity, peer=COORDINATOR)
            found[attacker] = {}
            for attack in STRANGERS:
                try:
                    found[attacker][attack.__name__] = await attack(doors)
                except Exception as error:  # an attack that ends otherwise was not refused
                    found[attacker][attack.__name__] = f"{type(error).__name__}: {error}"
                say(f"{attacker}: {attack.__name__}: {found[attacker][attack.__name__]}")
        await doors.remote.cancel(doors.job_id)
    return found


async def _attacker(doors: Doors, kind: str) -> Identity | None:
    state_dir = doors.folder / "coordinator"
    match kind:
        case "another region's":
            return issued_identity(state_dir, parties.region(REGIONS[-1]))
        case "one that has ended":
            return issued_identity(state_dir, parties.region("gone"), lifetime_s=-1.0)
        case "one that was revoked a second ago":
            revoked = issued_identity(state_dir, parties.operator("eve", Rights.OPERATOR))
            await doors.remote.remove_operator("eve")
            return revoked
        case _:
            return None


def restored_fleet_rejoins() -> tuple[float, dict[str, Any]]:
    """Return the agents that did not come back by themselves after the coordinator was restored elsewhere."""
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as folder:
        return asyncio.run(_restored(Path(folder)))


async def _restored(folder: Path) -> tuple[float, dict[str, Any]]:
    first, second, names = Services(folder), Services(folder), ("a", "b", "c")
    agents, state_dir, backup = Services(folder), folder / "coordinator", folder / "backup"
    words = ["coordinator", "run", "--state-dir", str(state_dir), "--listen"]
    try:
        address = (await first.start("coordinator", [*words, "127.0.0.1:0"]))["coordinator"]
        for name in names:
            token = issued_token(state_dir, address, parties.region(name))
            agent = ["agent", "run", "--region", name, "--coordinator", address, "--work-dir", str(folder / name)]
            await agents.start(f"agent-{name}", agent, {TOKEN_VARIABLE: token})
        user = issued_identity(state_dir, parties.operator("ann", Rights.OPERATOR))
        access = Access(secured=rpc.Secured(identity=user, peer=COORDINATOR))
        await _until_ready(address, access, len(names))
        _command(os.environ, "coordinator", "backup", "--state-dir", str(state_dir), str(backup))
        await first.stop(lambda: True)
        shutil.rmtree(state_dir)
        (folder / "coordinator.ready.json").unlink()
        _command(os.environ, "coordinator", "restore", "--state-dir", str(state_dir), str(backup))
        began_s = time.monotonic()
        await second.start("coordinator", [*words, address])
        back = await _until_ready(address, access, len(names))
        return len(names) - back, {"seconds": time.monotonic() - began_s, "back": back}
    finally:
        for each in (agents, first, second):
            await each.stop(lambda: True)


async def _ready(remote: Coordinator) -> list[str]:
    return [each.name for each in (await remote.fleet()).regions if each.state == "ready"]


async def _until_ready(address: str, access: Access, number: int) -> int:
    """Wait until that many regions are ready, for JOINED_S at most, and return how many are."""
    until_s = time.monotonic() + JOINED_S
    async with connect(address, access) as remote:
        while True:
            ready = await _ready(remote)
            if len(ready) >= number or time.monotonic() > until_s:
                return len(ready)
            await asyncio.sleep(0.1)


def deploy_artefacts_checked() -> tuple[float, dict[str, Any]]:
    """Return the fraction of checks that pass, and what was skipped."""
    words = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", "slow or not slow", "tests/deploy"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    *_, last = done.stdout.splitlines()
    counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    wrong = counts.get("failed", 0) + counts.get("error", 0)
    return counts["passed"] / (counts["passed"] + wrong), {"counts": counts, "skipped": skipped}


@contextlib.asynccontextmanager
async def _scraped_fleet() -> AsyncIterator[tuple[str, int]]:
    """A fleet of three regions with a job that runs; the address of the coordinator's metrics, and its process id."""
    with new_home() as folder:
        regions = dict.fromkeys(("a", "b", "c"), CORES)
        options = ("--metrics", "127.0.0.1:0")
        async with declared_fleet(folder, regions, coordinator_options=options) as remote:
            job = tiny_job(folder, steps=1_000_000, staleness=1, regions={"min": 3})
            job_id = (await remote.submit(submission(job, "r"))).job_id
            await until_running(remote, job_id, START_S)
            ready = json.loads((folder / "coordinator.ready.json").read_text())
            (pid,) = (pid for pid, words in pids_of(folder) if " coordinator run" in words)
            yield ready["metrics"], pid
            await remote.cancel(job_id)


def metrics_scrape_ms_p99() -> tuple[float, dict[str, Any]]:
    """Return the 99th percentile of a thousand scrapes, one after the other."""

    async def run() -> list[float]:
        async with _scraped_fleet() as (address, _):
            return await asyncio.to_thread(lambda: [_scrape_s(address) for _ in range(1000)])

    found = sorted(asyncio.run(run()))
    return found[989] * 1e3, {"median_ms": found[500] * 1e3, "max_ms": found[-1] * 1e3}


def _scrape_s(address: str) -> float:
    began_s = time.perf_counter()
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        answer.read()
    return time.perf_counter() - began_s


def coordinator_cpu_with_10_scrapers() -> tuple[float, dict[str, Any]]:
    """Return the coordinator's CPU seconds in WATCHED_S with scrapers, over those without; medians of three."""

    async def scrape(address: str, offset_s: float) -> None:
        await asyncio.sleep(offset_s)
        while True:
            await asyncio.to_thread(_scrape_s, address)
            await asyncio.sleep(SCRAPE_EVERY_S)

    async def run() -> dict[str, list[float]]:
        spent: dict[str, list[float]] = {"without": [], "with": []}
        async with _scraped_fleet() as (address, pid):
            process = psutil.Process(pid)
            for _ in range(3):
                for kind in spent:
                    number = SCRAPERS if kind == "with" else 0
                    every = [asyncio.create_task(scrape(address, 1.5 * each)) for each in range(number)]
                    before = process.cpu_times()
                    await asyncio.sleep(WATCHED_S)
                    after = process.cpu_times()
                    spent[kind].append(after.user + after.system - before.user - before.system)
                    for each in every:
                        each.cancel()
                    await asyncio.gather(*every, return_exceptions=True)
        return spent

    found = asyncio.run(run())
    return statistics.median(found["with"]) / statistics.median(found["without"]), {"cpu_s": found}


def main() -> int:
    """Measure, and print the figures against their targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(TARGETS), action="append")
    options = parser.parse_args()
    measures: Mapping[str, Measure] = {
        "tls_cost": tls_cost,
        "join_s": join_s,
        "attacks_refused": attacks_refused,
        "restored_fleet_rejoins": restored_fleet_rejoins,
        "deploy_artefacts_checked": deploy_artefacts_checked,
        "metrics_scrape_ms_p99": metrics_scrape_ms_p99,
        "coordinator_cpu_with_10_scrapers": coordinator_cpu_with_10_scrapers,
    }
    return print_figures("open_internet", measures, options.only or list(measures), TARGETS)


if __name__ == "__main__":
    sys.exit(main())
