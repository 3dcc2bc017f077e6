"""What is done to a fleet, and what must become of its job."""

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from periplus.pb.v1 import control_pb2
from tests.support.processes.demo import pids_of
from tests.support.processes.operated_fleet import (
    CONTROL,
    FAR,
    HOME,
    NEAR,
    NEW,
    TRAINER,
    WORKER,
    OperatedFleet,
    signalled,
    wait_for,
)
from tests.support.small_disk import SmallDisk

Strike = Callable[[OperatedFleet], None]
Pids = Callable[[OperatedFleet], list[int]]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong, or that an operator does.

    `strike` does it and ends when it is over. With `next_fork` the trainer must start again, and else must not.
    Meanwhile `periplus job show` must have the words `says`.
    """

    name: str
    what: str
    strike: Strike
    next_fork: bool = False
    is_quick: bool = False
    says: str = ""


def trainer(fleet: OperatedFleet) -> list[int]:
    return fleet.pids(TRAINER)


def worker(region: str) -> Pids:
    return lambda fleet: fleet.pids(WORKER, f"rollout-{region}")


def agent(region: str) -> Pids:
    return lambda fleet: [fleet.running[region].pid]


def coordinator(fleet: OperatedFleet) -> list[int]:
    return [fleet.running["coordinator"].pid]


def whole_region(region: str) -> Pids:
    return lambda fleet: agent(region)(fleet) + worker(region)(fleet)


def everything(fleet: OperatedFleet) -> list[int]:
    return [pid for pid, _ in pids_of(fleet.folder)]


def sent(pids: Pids, number: signal.Signals) -> Strike:
    return lambda fleet: signalled(pids(fleet), number)


def paused(pids: Pids, seconds: float) -> Strike:
    def strike(fleet: OperatedFleet) -> None:
        stopped = pids(fleet)
        signalled(stopped, signal.SIGSTOP)
        time.sleep(seconds)
        signalled(stopped, signal.SIGCONT)

    return strike


def agent_restarted(region: str, number: signal.Signals) -> Strike:
    def strike(fleet: OperatedFleet) -> None:
        fleet.running[region].send_signal(number)
        fleet.running[region].wait()
        fleet.start_agent(region)

    return strike


def coordinator_restarted(seconds: float = 0.0, *, destroyed: bool = False) -> Strike:
    def strike(fleet: OperatedFleet) -> None:
        state, copy = str(fleet.folder / "state"), fleet.folder / "backup.db"
        if destroyed:
            copy.unlink(missing_ok=True)
            fleet.run("coordinator", "backup", "--state-dir", state, str(copy))
        fleet.running["coordinator"].kill()
        fleet.running["coordinator"].wait()
        time.sleep(seconds)
        if destroyed:
            shutil.rmtree(state)
            fleet.run("coordinator", "restore", "--state-dir", state, str(copy))
        fleet.start_coordinator()

    return strike


@contextmanager
def links(fleet: OperatedFleet, region: str, others: tuple[str, ...], what: str, bad: str, good: str) -> Iterator[None]:
    for other in others:
        fleet.set_link(region, other, what, bad)
    yield
    for other in others:
        fleet.set_link(region, other, what, good)


def cut(region: str, others: tuple[str, ...], seconds: float) -> Strike:
    def strike(fleet: OperatedFleet) -> None:
        with links(fleet, region, others, "drop", "on", "off"):
            time.sleep(seconds)

    return strike


def slowed(fleet: OperatedFleet) -> None:
    with links(fleet, HOME, (FAR,), "rate", "64kbit", "75mbit"):
        time.sleep(30.0)


def filled(disk: str, seconds: float) -> Strike:
    def strike(fleet: OperatedFleet) -> None:
        filler = SmallDisk(fleet.folder / disk).fill()
        time.sleep(seconds)
        filler.unlink()

    return strike


def joined(fleet: OperatedFleet) -> None:
    # So near that it helps by the planner's model, also if a busy machine measures slower links.
    for other in (HOME, NEAR, FAR):
        fleet.set_link(NEW, other, "rate", "1gbit")
        fleet.set_link(NEW, other, "rtt", "1ms")
    fleet.start_agent(NEW)
    wait_for(lambda: bool(worker(NEW)(fleet)), 120.0, "a worker in the new region")


def joined_unusable(fleet: OperatedFleet) -> None:
    fleet.state_dir(NEW).mkdir()
    (fleet.state_dir(NEW) / "spools").write_text("in the way")
    fleet.start_agent(NEW)
    wait_for(lambda: UNUSABLE_WORDS in fleet.ask(lambda remote: remote.job(fleet.job_id)).doing, 120.0, "the reason")


UNUSABLE_WORDS = f"{NEW}: cannot use "


def lost(fleet: OperatedFleet) -> None:
    """The machine of the trainer's region is gone, with its disk."""

    def job() -> control_pb2.Job:
        found: control_pb2.Job = fleet.ask(lambda remote: remote.job(fleet.job_id))
        return found

    wait_for(lambda: bool(job().replica), 120.0, "a replica")
    region = next(each.region for each in job().processes if each.task_id.endswith("/trainer"))
    signalled([*agent(region)(fleet), *trainer(fleet), *worker(region)(fleet)], signal.SIGKILL)
    fleet.run_dir.rename(fleet.work / "lost")


def drained(fleet: OperatedFleet) -> None:
    fleet.run("region", "drain", NEAR)
    wait_for(lambda: not worker(NEAR)(fleet), 60.0, "the worker to leave")
    fleet.wait_for_steps(3)
    fleet.run("region", "uncordon", NEAR)
    wait_for(lambda: bool(worker(NEAR)(fleet)), 60.0, "the worker to come back")


KILL, TERM, HUP = signal.SIGKILL, signal.SIGTERM, signal.SIGHUP

PROCESSES = (
    Fault("worker-kill", "kill -9 of a worker", sent(worker(NEAR), KILL), is_quick=True),
    Fault("worker-term", "SIGTERM of a worker", sent(worker(NEAR), TERM)),
    Fault("worker-pause", "a worker stands still for 20 s", paused(worker(NEAR), 20.0)),
    Fault("trainer-kill", "kill -9 of the trainer", sent(trainer, KILL), next_fork=True, is_quick=True),
    Fault("trainer-term", "SIGTERM of the trainer", sent(trainer, TERM), next_fork=True),
    Fault(
        "trainer-pause",
        "the trainer stands still for 45 s",
        paused(trainer, 45.0),
        is_quick=True,
        says="its trainer has said nothing for",
    ),
    Fault("agent-kill", "kill -9 of the trainer's agent, started again", agent_restarted(HOME, KILL)),
    Fault("agent-upgrade", "the trainer's agent is upgraded (SIGHUP)", agent_restarted(HOME, HUP), is_quick=True),
    Fault("agent-pause", "the trainer's agent stands still for 45 s", paused(agent(HOME), 45.0)),
    Fault("agent-term", "the trainer's agent is stopped and started", agent_restarted(HOME, TERM), next_fork=True),
    Fault("far-agent-kill", "kill -9 of another agent, started again", agent_restarted(FAR, KILL)),
    Fault("far-agent-term", "another agent is stopped and started", agent_restarted(FAR, TERM)),
    Fault("far-region-pause", "a whole other region stands still for 30 s", paused(whole_region(FAR), 30.0)),
    Fault("all-pause", "everything stands still for 40 s", paused(everything, 40.0)),
)
COORDINATOR = (
    Fault("coordinator-kill", "kill -9 of the coordinator, started again", coordinator_restarted()),
    Fault("coordinator-pause", "the coordinator stands still for 45 s", paused(coordinator, 45.0)),
    Fault("coordinator-away", "the coordinator is away for two minutes", coordinator_restarted(120.0)),
    Fault(
        "coordinator-restored",
        "the coordinator is destroyed and restored from a backup",
        coordinator_restarted(destroyed=True),
        is_quick=True,
    ),
)
NETWORK = (
    Fault(
        "far-cut",
        "a region is cut off from all for 20 s",
        cut(FAR, (HOME, NEAR, CONTROL), 20.0),
        is_quick=True,
        says="far is disconnected",
    ),
    Fault(
        "far-cut-long",
        "a region is cut off from all for 60 s",
        cut(FAR, (HOME, NEAR, CONTROL), 60.0),
        says="far is disconnected",
    ),
    Fault("far-unheard", "a region is cut off from the coordinator for 40 s", cut(FAR, (CONTROL,), 40.0)),
    Fault("home-unheard", "the trainer's region is cut off from the coordinator for 40 s", cut(HOME, (CONTROL,), 40.0)),
    Fault("home-cut", "the trainer's region is cut off from all for 30 s", cut(HOME, (NEAR, FAR, CONTROL), 30.0)),
    Fault("link-slow", "a link has 64 kbit/s for 30 s", slowed),
)
DISKS = (
    Fault("run-disk", "the disk of the run is full for 15 s", filled("work", 15.0), says="waiting for disk: "),
    Fault(
        "home-disk",
        "the disk of the trainer's agent is full for 20 s",
        filled(f"state-{HOME}", 20.0),
        says="home: the disk is full",
    ),
    Fault(
        "far-disk",
        "the disk of another agent is full for 30 s",
        filled(f"state-{FAR}", 30.0),
        says="far: the disk is full",
    ),
)
REGION_CHANGES = (
    Fault("region-joins", "a fourth region joins", joined, is_quick=True),
    Fault("region-drained", "a region is drained, and opened again", drained, is_quick=True, says="near is drained"),
)
LOST = (
    Fault(
        "region-lost",
        "the trainer's region is gone for ever, 15 s allowed",
        lost,
        next_fork=True,
        says="then goes on elsewhere from checkpoint",
    ),
)
UNUSABLE = (Fault("state-unusable", "a fourth region joins whose state directory is unusable", joined_unusable),)

ROUNDS = {
    "processes": PROCESSES,
    "coordinator": COORDINATOR,
    "network": NETWORK,
    "disks": DISKS,
    "regions": REGION_CHANGES,
    "lost": LOST,
    "unusable": UNUSABLE,
}
"""Faults that are tried on one fleet, by a name."""

REPLICATED = ("regions.trainer=null", "regions.min=2", "failure.max_region_absence_s=15")
"""What the job of the round `lost` says besides the URL of its replicas."""
