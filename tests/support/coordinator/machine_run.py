"""The coordinator's machine, driven step by step: what its shell, its agents and its planner would do."""

from typing import Any

from coordinator.events import (
    CertificateRequested,
    Effect,
    Event,
    HeartbeatSeen,
    LinkMeasured,
    PlanFinished,
    ProbeFailed,
    RegionJoined,
    Stamp,
    TaskReported,
    Ticked,
)
from coordinator.machine.desired import desired_by_region
from coordinator.machine.reservations import device_counts
from coordinator.machine.step import step
from coordinator.state import (
    Hello,
    Job,
    JobRequest,
    PlacedProcess,
    PlacedProcesses,
    Settings,
    State,
)
from periplus.values.machine import DeviceCount
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.task import AssignedTask, Role, RunFiles, TaskReport, TaskState
from planner.answer.outcome import Fact, Infeasible
from tests.support.coordinator.machines import inventory, machine

SETTINGS = Settings(silent_after_s=10, probe_payload_bytes=1024, probe_timeout_s=20, probe_retry_s=60)
REGIONS = ("ap", "eu", "us")
AUTHORITY_KEY = "ab" * 32
KEYS = (b"k" * 32, b"l" * 32)


def hello(
    region: str,
    boot_id: str = "boot",
    tasks: tuple[TaskReport, ...] = (),
    *,
    groups: int = 1,
    accelerators: int = 0,
) -> Hello:
    """A region with one group of cores, which the processes of a job share, unless it has more devices."""
    own = machine(f"host-of-{region}-{boot_id}", groups=groups, accelerators=accelerators)
    return Hello(
        region=region,
        boot_id=boot_id,
        gateway_address=f"{region}:1",
        inventory=inventory(own),
        agent_version="0",
        tasks=tasks,
    )


def desired_tasks(state: State, region: str) -> tuple[AssignedTask, ...]:
    return desired_by_region(state).get(region, ())


def free(*regions: str) -> dict[str, DeviceCount]:
    """The counts of regions whose only device is free."""
    return dict.fromkeys(regions, DeviceCount(1, 1, machine().memory_bytes))


def report(
    task_id: str, state: TaskState, message: str = "", fork: int = 0, files: RunFiles | None = None
) -> TaskReport:
    return TaskReport(
        task_id=task_id, job_id=task_id.split("/")[0], state=state, message=message, restarts=0, fork=fork, files=files
    )


def record(version: int, kind: RecordKind = RecordKind.STEP) -> Record:
    return Record(kind=kind, policy=Policy(0, version), time_s=float(version))


def request(min_regions: int = 1, **fields: Any) -> JobRequest:
    return JobRequest(name="job", min_regions=min_regions, **{"job_json": "{}", **fields})


def infeasible(why: str) -> Infeasible:
    """A proof of the planner that one fact rules the job out."""
    return Infeasible(facts=(Fact(kind="rules", name="fact", what=why),))


def placed(trainer: str, *rollouts: str, workers: int = 1, devices: tuple[int, int] = (1, 1)) -> PlacedProcesses:
    """A trainer, and workers in each of these regions."""
    worker = [
        PlacedProcess(role=Role.ROLLOUT, region=each, num_devices=devices[1])
        for each in rollouts
        for _ in range(workers)
    ]
    return PlacedProcesses(
        processes=(PlacedProcess(role=Role.TRAINER, region=trainer, num_devices=devices[0]), *worker), plan_json="{}"
    )


class Run:
    """A machine driven by hand, with the effects of the last event."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.state = State(settings=settings, authority_key=AUTHORITY_KEY)
        self.now_s = 1000.0
        self.effects: tuple[Effect, ...] = ()

    def do(self, event: Event) -> tuple[Effect, ...]:
        self.state, self.effects = step(self.state, event, self.now_s)
        return self.effects

    def stamp(self, region: str) -> Stamp:
        known = self.state.regions[region]
        return Stamp(region, known.epoch, known.last_sequence + 1)

    def join(self, *regions: str) -> None:
        for region in regions:
            self.do(RegionJoined(hello(region), 1))

    def measure_all(self) -> None:
        while self.state.probes:
            self.answer_probe(*next(iter(self.state.probes)))

    def answer_probe(self, src: str, dst: str) -> None:
        self.do(LinkMeasured(stamp=self.stamp(src), dst_region=dst, rtt_s=0.1, throughput_bits_per_s=1e8))

    def probe_fails(self, src: str, dst: str, why: str = "no route") -> tuple[Effect, ...]:
        return self.do(ProbeFailed(stamp=self.stamp(src), dst_region=dst, why=why))

    def wait(self, seconds: float) -> tuple[Effect, ...]:
        """Time passes, in which every agent is heard."""
        self.now_s += seconds
        for region in self.state.regions:
            self.do(HeartbeatSeen(self.stamp(region), {}))
        return self.do(Ticked())

    def says(
        self, region: str, task_id: str, state: TaskState, message: str = "", files: RunFiles | None = None
    ) -> tuple[Effect, ...]:
        """An agent reports a task of the job's present fork."""
        known = self.state.jobs.get(task_id.split("/")[0])
        fork = known.fork if known else 0
        return self.do(TaskReported(self.stamp(region), report(task_id, state, message, fork, files)))

    def asks(self, region: str, fork: int = 0, key: bytes = KEYS[0], job_id: str = "j") -> Effect:
        """A trainer asks for a certificate; return the answer."""
        asked = CertificateRequested(stamp=self.stamp(region), job_id=job_id, fork=fork, public_key=key)
        *_, answer = self.do(asked)
        return answer

    def place(
        self, job_id: str, trainer: str, *rollouts: str, workers: int = 1, devices: tuple[int, int] = (1, 1)
    ) -> None:
        """`devices` are those of the trainer, and of each rollout worker."""
        self.do(
            PlanFinished(
                job_id, device_counts(self.state), placed(trainer, *rollouts, workers=workers, devices=devices)
            )
        )

    def job(self, job_id: str = "j") -> Job:
        return self.state.jobs[job_id]

    def desired(self, region: str) -> dict[str, bool]:
        return {task.task_id: task.stopping for task in desired_tasks(self.state, region)}
