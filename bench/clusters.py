"""Claim: a cluster's scheduler starts the processes of jobs, and they are as they are on the agent's own machine.

- `contract_cases_passed`: cases of the launchers' contract (`tests/region_agent/launchers/test_clusters.py`) that pass,
  over those that ran on the agent's own machine, on a real Slurm and on a real Ray. Each launcher must run some.
- `start_s_ray_vs_local`, `start_s_slurm_vs_local`: seconds from the placement of a job in one region to its first
  step, with the launcher less those with local; medians of jobs by turns. Both times are of the coordinator's events.
- `two_nodes_same_losses`: relative difference of the first step's loss between a trainer with a device on each of two
  nodes and one with both devices on one node, in a synchronous job with the same seed.
- `killed_node_noticed_s`: seconds from SIGKILL of all daemons of a node of Ray or Slurm until what ran there has
  failed; the most of several nodes of each. An agent looks at its processes every `RECONCILE_S`, and reports it then.
- `tokens_per_s_ray_vs_local`: completion tokens that a job on one machine trains on in a second under Ray, over those
  with local; medians of runs by turns, from the third step. Ray's daemons run only under Ray.

    python -m bench.clusters [FIGURE...]

The last line is one JSON object, and everything else goes to stderr. A figure that cannot be measured here has the
value null and says why. One with a value that misses its target, or without a value, makes the exit code 1.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.experiment_cases.executed_fleets import START_S, ended_job, new_home, tokens_per_s
from bench.experiment_cases.unlike_jobs import CASES
from bench.provenance import Measure, commit, machine, reached, say
from coordinator.client.connection import Coordinator, job_state
from coordinator.client.submission import submission
from periplus.job.job_file import JobFile
from periplus.values.task import TaskState
from region_agent.app import RECONCILE_S
from region_agent.control.reconcile import Start
from region_agent.launchers.ray_cluster import ADDRESS_VARIABLE, RayCluster
from region_agent.launchers.slurm_cluster import SlurmCluster
from tests.region_agent.launchers.test_clusters import Place
from tests.region_agent.launchers.test_local import ROOT, outcome, running_pid
from tests.support.processes.clusters import RayNodes, SlurmNodes, ray_nodes, slurm_allocation, until
from tests.support.processes.declared_fleet import DeclaredRegion, declared_fleet, until_running
from tests.support.tiny_job import tiny_job

CONTRACT = "tests/region_agent/launchers/test_clusters.py"
LAUNCHERS = ("local", "ray", "slurm")
TURNS, JOBS_A_TURN = 3, 2
PAIRS, STEPS = 7, 60
"""Pairs of runs that measure tokens, and steps of each run. Equal runs differ by 5 % and more, so that a few
short ones cannot tell 0.97 from 0.95."""
KILLED_NODES = 3
PLACED_S = 60.0
"""Most seconds until a job runs whose trainer wants two nodes; some 15 are usual. Chosen by hand."""
GROUP = ({"kind": "cpu"},)
"""One group of cores."""

TARGETS: Mapping[str, tuple[str, float, str]] = {
    "contract_cases_passed": ("==", 1.0, "fraction"),
    "start_s_ray_vs_local": ("<=", 5.0, "s"),
    "start_s_slurm_vs_local": ("<=", 5.0, "s"),
    "two_nodes_same_losses": ("<=", 1e-5, "relative difference"),
    "killed_node_noticed_s": ("<=", 10.0, "s"),
    "tokens_per_s_ray_vs_local": (">=", 0.97, "ratio"),
}
"""Operator, target and unit of each figure."""


class NotRun(Exception):
    """A figure cannot be measured here, and why."""


@contextmanager
def launched(launcher: str, num_nodes: int = 1) -> Iterator[tuple[DeclaredRegion, RayNodes | SlurmNodes | None]]:
    """Run the cluster of a launcher, and yield a region whose agent uses it and offers cores, and the nodes.

    The variables of the cluster are those of this process meanwhile. Raises: NotRun if the cluster is not installed.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="periplus-bench-")))
        nodes: RayNodes | SlurmNodes | None = None
        variables = dict[str, str]()
        try:
            if launcher == "ray":
                nodes = of_ray = stack.enter_context(ray_nodes(folder, num_nodes))
                variables |= {ADDRESS_VARIABLE: of_ray.address}
            elif launcher == "slurm":
                nodes = stack.enter_context(slurm_allocation(folder))
        except pytest.skip.Exception as error:
            raise NotRun(str(error)) from error
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        variables |= nodes.variables if nodes is not None else {}
        for name, text in {"PYTHONPATH": str(ROOT), **variables}.items():
            patched.setenv(name, text)
        yield DeclaredRegion(options=("--launcher", launcher)), nodes


def contract_cases_passed() -> tuple[float, dict[str, Any]]:
    """Return the fraction of cases that passed, and counts of each launcher with what was skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-m", "slow or not slow", f"--junitxml={report}", CONTRACT]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if not report.exists():
            raise NotRun(done.stdout + done.stderr)
        counts: dict[str, Counter[str]] = {launcher: Counter() for launcher in LAUNCHERS}
        told: dict[str, list[str]] = {"skipped": [], "failed": []}
        for case in ElementTree.parse(report).iter("testcase"):
            name = case.attrib["name"]
            # A case without a launcher in its name is of Ray alone.
            launcher = next(iter(re.findall(rf"\[({'|'.join(LAUNCHERS)})[-\]]", name)), "ray")
            wrong = [each for each in case if each.tag in ("skipped", "failure", "error")]
            kind = "passed" if not wrong else "skipped" if wrong[0].tag == "skipped" else "failed"
            counts[launcher][kind] += 1
            if wrong:
                told[kind].append(f"{name}: {wrong[0].attrib['message']}")
    if lacking := [launcher for launcher in LAUNCHERS if not counts[launcher]["passed"] + counts[launcher]["failed"]]:
        raise NotRun(f"no case of {', '.join(lacking)}: {told['skipped'][:1]}")
    total = sum((Counter(each) for each in counts.values()), Counter[str]())
    return total["passed"] / (total["passed"] + total["failed"]), {"cases": counts} | told


def start_s_vs_local(launcher: str) -> tuple[float, dict[str, Any]]:
    """Return the median start of jobs with a launcher less that with local, in seconds, and all starts."""
    found: dict[str, list[dict[str, float]]] = {"local": [], launcher: []}
    for turn in range(TURNS):
        for each in (found, reversed(found))[turn % 2]:  # neither is always first
            with launched(each) as (region, _), new_home() as folder:
                found[each] += asyncio.run(_starts(folder, region))
            say(f"starts with {each}: {found[each][-JOBS_A_TURN:]}")
    medians = {each: statistics.median(start["start_s"] for start in starts) for each, starts in found.items()}
    return medians[launcher] - medians["local"], {"median_s": medians, "starts": found}


async def _starts(folder: Path, region: DeclaredRegion) -> list[dict[str, float]]:
    job = tiny_job(folder, steps=2)
    async with declared_fleet(folder, {"eu": region}) as remote:
        return [await _start(remote, job, f"r{number}") for number in range(JOBS_A_TURN)]


async def _start(remote: Coordinator, job: JobFile, request_id: str) -> dict[str, float]:
    """Run a job, and return the seconds until its first step, and how many of them its trainer's process saw."""
    job_id = (await remote.submit(submission(job, request_id))).job_id
    placed_s = first_s = trainer_s = 0.0
    async with asyncio.timeout(START_S):
        async for event in remote.watch(job_id):
            if event.WhichOneof("body") == "job" and job_state(event.job) == "planned":
                placed_s = placed_s or event.time_s
            elif event.WhichOneof("body") == "step" and event.step.kind == "step" and not first_s:
                first_s, trainer_s = event.time_s, event.step.time_s
    ended = await remote.job(job_id)
    assert job_state(ended) == "succeeded", ended.reason
    return {"start_s": round(first_s - placed_s, 3), "in_trainer_s": round(trainer_s, 3)}


def two_nodes_same_losses() -> tuple[float, dict[str, Any]]:
    """Return the relative difference of the first losses, and both. Raises: NotRun if no trainer spans two nodes."""
    found = {number: asyncio.run(_first_step(number)) for number in (2, 1)}
    one, two = found[1]["loss"], found[2]["loss"]
    return abs(two - one) / abs(one), {"nodes": found}


async def _first_step(num_nodes: int) -> dict[str, float]:
    """Run a job whose trainer has two devices on so many nodes, and return the values of its first step."""
    others = {f"n{number}": GROUP for number in range(1, num_nodes)}
    with launched("ray", num_nodes) as (cluster, _), new_home() as folder:
        region = DeclaredRegion(devices=GROUP * (2 // num_nodes), others=others, options=cluster.options)
        job = CASES["synchronous"].job(folder, "steps=2", "train.devices=2")
        async with declared_fleet(folder, {"eu": region}) as remote:
            job_id = (await remote.submit(submission(job, "r"))).job_id
            try:
                placed = await until_running(remote, job_id, PLACED_S)
            except TimeoutError:
                waits = await remote.job(job_id)
                raise NotRun(f"the job is {job_state(waits)}: {waits.reason or waits.notice}") from None
            (trainer,) = (each for each in placed.processes if each.task_id.endswith("trainer"))
            nodes = {trainer.machine, *(other.machine for other in getattr(trainer, "others", ()))}
            if len(nodes) < num_nodes:
                await remote.cancel(job_id)
                raise NotRun(f"the coordinator placed the trainer on {', '.join(sorted(nodes))} alone")
            ended = await ended_job(remote, job_id)
            assert job_state(ended) == "succeeded", ended.reason
        lines = (Path(ended.files.run_dir) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        first = next(line for line in map(json.loads, lines) if line["kind"] == "step")
    return {name: first[name] for name in ("loss", "grad_norm", "completion_tokens")}


def killed_node_noticed_s() -> tuple[float, dict[str, Any]]:
    """Return the most seconds until a process of a killed node has failed, and those of each node."""
    with tempfile.TemporaryDirectory() as folder, launched("ray") as (_, nodes):
        assert isinstance(nodes, RayNodes)
        cluster = RayCluster(nodes.address, "eu")
        found: dict[str, list[float]] = {"ray": [], "slurm": []}
        try:
            for number in range(KILLED_NODES):
                found["ray"].append(_new_node_noticed_s(cluster, nodes, Path(folder) / str(number)))
        finally:
            cluster.close(leaves_tasks=False)
    for _ in range(KILLED_NODES):
        with tempfile.TemporaryDirectory() as folder, launched("slurm") as (_, of_slurm):
            assert isinstance(of_slurm, SlurmNodes)
            place = Place(SlurmCluster(), of_slurm.variables, of_slurm)
            found["slurm"].append(_noticed_s(place, of_slurm, Path(folder) / "slurm"))
    return max(*found["ray"], *found["slurm"]), {"seconds": found, "agent_looks_every_s": RECONCILE_S}


def _new_node_noticed_s(cluster: RayCluster, nodes: RayNodes, folder: Path) -> float:
    place = Place(cluster, nodes.variables, nodes)
    place.node = nodes.add_node()
    until(lambda: place.node in cluster.nodes(), place.node)
    noticed_s = _noticed_s(place, nodes, folder)
    until(lambda: place.node not in cluster.nodes(), f"the end of {place.node}")  # the next one has the same name
    return noticed_s


def _noticed_s(place: Place, nodes: RayNodes | SlurmNodes, folder: Path) -> float:
    folder.mkdir()
    supervisor = place.supervisor(folder)
    supervisor.perform(Start(place.task("wait"), 0), 1.0)
    running_pid(folder)
    began_s = time.monotonic()
    nodes.kill_node(place.node)
    assert outcome(supervisor).state is TaskState.FAILED
    noticed_s = time.monotonic() - began_s
    say(f"node {place.node}: noticed after {noticed_s:.2f} s")
    return noticed_s


def tokens_per_s_ray_vs_local() -> tuple[float, dict[str, Any]]:
    """Return tokens a second under Ray over those with local, medians of pairs."""
    case, pairs = CASES["4.7M"], []
    with tempfile.TemporaryDirectory() as folder:
        job = case.job(Path(folder))
        for number in range(PAIRS):
            found = {}
            for launcher in ("ray", "local") if number % 2 else ("local", "ray"):  # neither is always first
                with launched(launcher) as (region, _):
                    found[launcher] = tokens_per_s(job, {"eu": region}, "", "", STEPS)["tokens_per_s"]
            pairs.append([found["ray"], found["local"]])
            say(f"tokens/s with Ray and with local: {pairs[-1]}")
    ray, local = zip(*pairs, strict=True)
    return statistics.median(ray) / statistics.median(local), {"tokens_per_s": pairs}


MEASURES: Mapping[str, Measure] = {
    "contract_cases_passed": contract_cases_passed,
    "start_s_ray_vs_local": lambda: start_s_vs_local("ray"),
    "start_s_slurm_vs_local": lambda: start_s_vs_local("slurm"),
    "two_nodes_same_losses": two_nodes_same_losses,
    "killed_node_noticed_s": killed_node_noticed_s,
    "tokens_per_s_ray_vs_local": tokens_per_s_ray_vs_local,
}


def main() -> int:
    """Measure, and print the figures against their targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(MEASURES))
    options = parser.parse_args()
    if unknown := set(options.figures) - set(MEASURES):
        parser.error(f"no such figure: {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    about, results, reach = machine(), dict[str, Any](), []
    for name in options.figures or MEASURES:
        op, target, unit = TARGETS[name]
        try:
            value, results[name] = MEASURES[name]()
            reach.append(reached(name, value, unit, op, target))
        except NotRun as why:
            row = {"name": name, "value": None, "unit": unit, "op": op, "target": target, "ok": False}
            reach.append(row | {"not_run": str(why)})
        say(f"{name}: {json.dumps(reach[-1])}")
    print(json.dumps({"bench": "clusters", "commit": commit(), "machine": about, "results": results, "reach": reach}))
    return 0 if all(each["ok"] for each in reach) else 1


if __name__ == "__main__":
    sys.exit(main())
