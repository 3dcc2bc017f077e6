"""The coordinator's machine: what it promises whatever happens."""

import copy
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.events import (
    CertificateRequested,
    Effect,
    Event,
    FleetEvent,
    HeartbeatSeen,
    JobCancelled,
    JobSubmitted,
    LinkMeasured,
    PlanFinished,
    PlannerFailed,
    ProbeFailed,
    Publish,
    RegionJoined,
    RegionLeft,
    RegionOrder,
    RegionOrdered,
    RunPlanner,
    SendCertificate,
    SendDesired,
    StepRecorded,
    TaskReported,
    Ticked,
)
from coordinator.machine.links import LINK_WAIT_S
from coordinator.machine.reservations import device_counts
from coordinator.machine.step import step
from coordinator.state import ENDED_STATES, TRANSITIONS, Job, JobState, State
from coordinator.store import changes_between, open_store
from periplus.errors import PeriplusError
from periplus.values.policy import Policy
from periplus.values.task import Role, RunFiles, TaskState
from tests.support.cases.examples import examples
from tests.support.coordinator.machine_run import (
    AUTHORITY_KEY,
    KEYS,
    REGIONS,
    SETTINGS,
    Run,
    desired_tasks,
    free,
    hello,
    infeasible,
    placed,
    record,
    report,
    request,
)

_names = st.sampled_from(REGIONS)
GROUPS = {"ap": 1, "eu": 2, "us": 4}
"""Groups of cores of each region."""
_states = st.sampled_from(TaskState)


class AnyHistory(RuleBasedStateMachine):
    """Agents, operators, planner and time in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Run()
        self.num_jobs = 0
        self.told: dict[str, JobState] = {}
        self.down: dict[str, tuple[str, ...]] = {}
        self.certified: dict[tuple[str, int], bytes] = {}
        self.store = open_store(None)
        self.asked: RunPlanner | None = None

    def do(self, event: Event) -> None:
        before = self.run.state
        kept = copy.deepcopy(before)
        try:
            effects = self.run.do(event)
        except PeriplusError:
            effects = ()
        assert before == kept, "an event changed the old state"
        events = [effect for effect in effects if isinstance(effect, FleetEvent)]
        self.store.write(changes_between(before, self.run.state), events, self.run.now_s)
        for effect in effects:
            self.observe(effect)

    def observe(self, effect: Effect) -> None:
        match effect:
            case Publish(job_id, Job(state=state)):
                told = self.told.get(job_id)
                resumed = state is JobState.PENDING and (told is None or told in ENDED_STATES)
                assert resumed or state is told or state in TRANSITIONS[told or JobState.PENDING]
                self.told[job_id] = state
            case RunPlanner():
                self.asked = effect
            case SendDesired(region, epoch, _, tasks):
                assert epoch == self.run.state.regions[region].epoch
                self.down[region] = tuple(task.task_id for task in tasks)
            case SendCertificate():
                job = self.run.state.jobs[effect.job_id]
                assert job.trainer
                assert (job.trainer.region, job.fork, job.ended) == (effect.region, effect.fork, False)
                key = self.certified.setdefault((effect.job_id, effect.fork), effect.public_key)
                assert key == effect.public_key, "a fork has two keys"

    @initialize(regions=st.sets(_names), num_jobs=st.integers(0, 2))
    def a_fleet_has_gathered(self, regions: set[str], num_jobs: int) -> None:
        for region in sorted(regions):
            self.do(RegionJoined(hello(region, "b1", groups=GROUPS[region]), 1))
        self.run.measure_all()
        for _ in range(num_jobs):
            self.submit(1)

    @rule(region=_names, boot_id=st.sampled_from(("b1", "b2")), data=st.data())
    def join(self, region: str, boot_id: str, data: st.DataObject) -> None:
        known = self.run.state.regions.get(region)
        running = tuple(known.tasks.values()) if known else ()
        kept = data.draw(st.lists(st.sampled_from(running), unique_by=lambda r: r.task_id)) if running else []
        self.do(RegionJoined(hello(region, boot_id, tuple(kept), groups=GROUPS[region]), 1))

    @rule(region=_names, epochs_ago=st.integers(0, 1))
    def leave(self, region: str, epochs_ago: int) -> None:
        if known := self.run.state.regions.get(region):
            self.do(RegionLeft(region, known.epoch - epochs_ago))

    @rule()
    def the_coordinator_starts_again(self) -> None:
        known, empty = self.run.state, State(settings=SETTINGS, authority_key=AUTHORITY_KEY)
        self.run.state = self.store.load(empty, self.run.now_s)
        assert not changes_between(known, self.run.state)
        assert list(self.run.state.jobs) == list(known.jobs)
        self.down.clear()

    @precondition(lambda self: self.run.state.probes)
    @rule(data=st.data(), works=st.booleans())
    def answer_probe(self, data: st.DataObject, works: bool) -> None:
        src, dst = data.draw(st.sampled_from(sorted(self.run.state.probes)))
        if works:
            link = LinkMeasured(stamp=self.run.stamp(src), dst_region=dst, rtt_s=0.1, throughput_bits_per_s=1e8)
            self.do(link)
        else:
            self.do(ProbeFailed(stamp=self.run.stamp(src), dst_region=dst, why="no route"))
        assert ((src, dst) in self.run.state.failed_links) == (not works)

    @rule(seconds=st.sampled_from((1, 9, 25, 70)))
    def time_passes(self, seconds: int) -> None:
        self.run.now_s += seconds
        for name, region in self.run.state.regions.items():
            if region.connected and seconds < 10:
                self.do(HeartbeatSeen(self.run.stamp(name), {}))
        self.do(Ticked())

    @rule(min_regions=st.integers(1, 3))
    def submit(self, min_regions: int) -> None:
        self.num_jobs += 1
        self.run.now_s += 0.01
        wanted = request(min_regions, max_trainer_restarts=self.num_jobs % 2)
        self.do(JobSubmitted(f"r{self.num_jobs}", f"j{self.num_jobs}", wanted))

    @precondition(lambda self: self.run.state.jobs)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.run.state.jobs)))
        before = self.run.state.jobs[job_id]
        self.num_jobs += 1
        self.run.now_s += 0.01
        wanted = request(resume_from="runs/x", resume_policy=Policy(0, 3), resume_job_id=job_id)
        self.do(JobSubmitted(f"r{self.num_jobs}", "unused", wanted))
        after = self.run.state.jobs[job_id]
        assert after.fork > before.fork if before.ended else after == before

    @precondition(lambda self: self.run.state.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.do(JobCancelled(data.draw(st.sampled_from(sorted(self.run.state.jobs)))))

    @rule(region=_names, order=st.sampled_from(RegionOrder))
    def an_operator_orders(self, region: str, order: RegionOrder) -> None:
        self.do(RegionOrdered(region, order))

    @precondition(lambda self: self.run.state.planning)
    @rule(outcome=st.sampled_from(("place", "infeasible", "fail")), data=st.data())
    def planner_answers(self, outcome: str, data: st.DataObject) -> None:
        assert self.asked is not None
        job_id, new_regions = self.asked.job_id, self.asked.new_regions
        assert job_id == self.run.state.planning
        offered = self.asked.free
        if not new_regions:
            offered = device_counts(self.run.state) if data.draw(st.booleans()) else free("us")
        match outcome:
            case "place":
                known = st.sampled_from(sorted(new_regions or self.run.state.regions))
                rollouts = data.draw(st.sets(known, min_size=1))
                answer: Any = placed(data.draw(known), *sorted(rollouts), workers=data.draw(st.integers(1, 2)))
                if new_regions:
                    answer = replace(answer, processes=answer.processes[1:])
            case "infeasible":
                answer = infeasible("too small")
            case _:
                answer = PlannerFailed("bug")
        self.do(PlanFinished(job_id, offered, answer, new_regions))

    @precondition(lambda self: any(job.tasks for job in self.run.state.jobs.values()))
    @rule(data=st.data(), state=_states, region=_names)
    def agent_reports(self, data: st.DataObject, state: TaskState, region: str) -> None:
        jobs = self.run.state.jobs.values()
        tasks = {task_id: status.region for job in jobs for task_id, status in job.tasks.items()}
        task_id = data.draw(st.sampled_from(sorted(tasks)))
        region = tasks[task_id] if data.draw(st.integers(0, 4)) else region
        if region not in self.run.state.regions:
            return
        before = self.run.state.jobs[task_id.split("/")[0]]
        files = RunFiles(run_dir="/runs/j", log="/log")
        stamp, said = self.run.stamp(region), report(task_id, state, "why", before.fork, files)
        self.do(TaskReported(stamp, said))
        after = self.run.state.jobs[said.job_id]
        if before.ended:
            # A task that outlived its job is shown as ended when it ends; nothing else of the job changes.
            ends = after.tasks[task_id].ended and not before.tasks[task_id].ended
            news = {task_id: after.tasks[task_id]} if ends else {}
            assert (after.state, after.tasks) == (before.state, {**before.tasks, **news}), (
                "an ended job came back to life"
            )
        elif before.tasks[task_id].ended:
            assert (after.state, after.tasks) == (before.state, before.tasks), "an ended task came back to life"
        once = self.run.state
        self.do(TaskReported(stamp, report(task_id, TaskState.FAILED, "another")))
        assert self.run.state == once, "a message of a known sequence changed the state"
        self.do(TaskReported(replace(stamp, sequence=stamp.sequence + 1), said))
        assert self.run.state.jobs == once.jobs, "a repeated report changed a job"
        assert step(self.run.state, TaskReported(replace(stamp, epoch=stamp.epoch - 1, sequence=99), said), 0.0) == (
            self.run.state,
            (),
        ), "a fenced epoch changed something"

    @precondition(lambda self: self.run.state.jobs)
    @rule(data=st.data(), region=_names, version=st.integers(0, 5))
    def trainer_records(self, data: st.DataObject, region: str, version: int) -> None:
        if region in self.run.state.regions:
            job_id = data.draw(st.sampled_from(sorted(self.run.state.jobs)))
            self.do(StepRecorded(self.run.stamp(region), job_id, record(version)))

    @precondition(lambda self: self.run.state.jobs)
    @rule(data=st.data(), fork=st.integers(0, 2), key=st.sampled_from(KEYS))
    def trainer_asks(self, data: st.DataObject, fork: int, key: bytes) -> None:
        job = self.run.state.jobs[data.draw(st.sampled_from(sorted(self.run.state.jobs)))]
        there = job.trainer.region if job.trainer else "eu"
        region, fork = (there, job.fork) if data.draw(st.booleans()) else (data.draw(_names), fork)
        if region in self.run.state.regions:
            stamp = self.run.stamp(region)
            self.do(CertificateRequested(stamp=stamp, job_id=job.job_id, fork=fork, public_key=key))

    @invariant()
    def a_job_has_at_most_one_trainer_and_an_ended_job_nothing(self) -> None:
        wanted = [task for region in self.run.state.regions for task in desired_tasks(self.run.state, region)]
        for job_id, job in self.run.state.jobs.items():
            mine = [task for task in wanted if task.job_id == job_id]
            assert sum(task.role is Role.TRAINER for task in mine) <= 1
            assert not (job.ended and mine)

    @invariant()
    def a_device_serves_one_job_and_is_there(self) -> None:
        for name, region in self.run.state.regions.items():
            present = {device.index for device in region.hello.inventory.own.devices}
            held: dict[int, str] = {}
            for task in desired_tasks(self.run.state, name):
                assert task.devices
                assert present.issuperset(task.devices)
                assert all(held.setdefault(index, task.job_id) == task.job_id for index in task.devices)

    @invariant()
    def a_connected_region_was_told_what_is_desired_of_it(self) -> None:
        for name, region in self.run.state.regions.items():
            if region.connected:
                wanted = desired_tasks(self.run.state, name)
                assert region.sent == wanted

    @invariant()
    def a_probe_runs_between_ready_regions(self) -> None:
        assert all(self.run.state.regions[name].connected for pair in self.run.state.probes for name in pair)

    @invariant()
    def two_probes_never_share_a_source_or_a_destination(self) -> None:
        for regions in zip(*self.run.state.probes, strict=True):
            assert len(regions) == len({*regions})

    @invariant()
    def only_a_pending_job_waits_for_links_and_only_for_so_long(self) -> None:
        for job_id, since_s in self.run.state.link_waits.items():
            job = self.run.state.jobs[job_id]
            assert job.state is JobState.PENDING
            assert self.run.now_s - since_s < LINK_WAIT_S or "links" not in job.reason

    @invariant()
    def watchers_were_told_the_state_of_every_job(self) -> None:
        assert self.told == {job_id: job.state for job_id, job in self.run.state.jobs.items()}


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = hypothesis_settings(max_examples=examples(200), stateful_step_count=30, deadline=None)
