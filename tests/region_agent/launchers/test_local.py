"""The supervisor with real processes, small ones."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from periplus.job.resumption import MANIFEST
from periplus.job.run_directory import RunDirectory, fork_of_start_line
from periplus.pb.v1 import control_pb2
from periplus.process.backoff import Backoff
from periplus.process.host_limits import usable_cores
from periplus.values.machine import Device, DeviceFamily, Pace
from periplus.values.task import FailureCause, Role, TaskOutcome, TaskState
from region_agent.control.convert import report_to_pb
from region_agent.control.reconcile import AskToStop, Forget, Kill, LocalTask, RestartLimits, Start, reconcile, report
from region_agent.launchers.local import Supervisor, WorkerSettings, resumed_from
from tests.support.coordinator.machines import machine
from tests.support.keys import JOB_SECRET
from tests.support.processes.fake_engine import exists, is_alive
from tests.support.small_disk import small_disk

WORKER = "tests.region_agent.tiny_worker"
ROOT = Path(__file__).parents[3]
DEADLINE_S = 200.0
MACHINE = machine()


def task(behaviour: str, task_id: str = "j/rollout:0") -> LocalTask:
    return LocalTask(
        task_id=task_id,
        job_id="j",
        role=Role.ROLLOUT,
        job_json=behaviour,
        trainer_region="a",
        trainer_gateway="a:1",
        fork=0,
        resume_from="",
        plan_json="{}",
        stopping=False,
        authority_key="ab" * 32,
        job_secret=JOB_SECRET,
        output_dir="runs",
        max_restarts=3,
    )


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return settings_of(tmp_path).task_dir


def settings_of(folder: Path) -> WorkerSettings:
    return WorkerSettings(
        region="a", gateway="a:1", work_dir=folder, task_dir=folder / "scratch", num_threads=dict.fromkeys(Role, 1)
    )


@pytest.fixture
def supervisor(tmp_path: Path, scratch: Path) -> Iterator[Supervisor]:
    settings = settings_of(tmp_path)
    made = Supervisor(settings, (MACHINE,), dict.fromkeys(Role, WORKER))
    yield made
    asyncio.run(made.stop_all(0.0, time.monotonic))


def wait_for(true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < until_s, "waited in vain"
        time.sleep(0.01)


def outcome(supervisor: Supervisor, task_id: str = "j/rollout:0") -> TaskOutcome:
    def ended() -> bool:
        supervisor.poll(time.monotonic())
        return supervisor.processes[task_id].outcome is not None

    wait_for(ended)
    ended_as = supervisor.processes[task_id].outcome
    assert ended_as is not None
    return ended_as


def running_pid(tmp_path: Path) -> int:
    file = tmp_path / "runs" / "j" / "running"
    wait_for(lambda: file.exists() and bool(file.read_text()))
    return int(file.read_text())


def test_a_process_that_succeeds_leaves_its_log_and_no_scratch(
    supervisor: Supervisor, tmp_path: Path, scratch: Path
) -> None:
    supervisor.perform(Start(task("succeed"), 0), 1.0)
    assert supervisor.processes["j/rollout:0"].outcome is None
    assert len(list(scratch.iterdir())) == 1
    assert outcome(supervisor) == TaskOutcome(state=TaskState.SUCCEEDED, message="")
    assert "at work" in (tmp_path / "runs" / "j" / "logs" / "rollout-0.log").read_text()
    assert not scratch.exists()
    supervisor.perform(Forget("j/rollout:0"), 2.0)
    assert supervisor.processes == {}


def test_a_run_outside_the_allowed_directories_starts_nothing_and_fails_for_good(tmp_path: Path) -> None:
    work, more = tmp_path / "work", tmp_path / "more"
    settings = replace(settings_of(tmp_path), work_dir=work, allow_dirs=(more,))
    made = Supervisor(settings, (MACHINE,), dict.fromkeys(Role, WORKER))
    for refused in (
        replace(task("succeed"), output_dir=str(tmp_path / "out")),
        replace(task("succeed"), output_dir="../out"),
        replace(task("succeed"), role=Role.TRAINER, resume_from=str(tmp_path / "out" / "j")),
        replace(task("succeed"), role=Role.TRAINER, resume_from=f"file://{tmp_path}/out/j/0.1"),
        replace(task("succeed"), role=Role.TRAINER, replicate=f"file://{tmp_path}/out%2F"),
    ):
        made.perform(Start(refused, 0), 1.0)
        ended = made.processes["j/rollout:0"].outcome
        assert ended is not None
        assert (ended.state, ended.cause) == (TaskState.FAILED, FailureCause.LASTING)
        assert str(work) in ended.message
        assert str(more) in ended.message
    assert list(tmp_path.iterdir()) == [], "nothing was made there"
    assert not made.refusal(replace(task("succeed"), output_dir=str(more / "out")))
    assert not made.refusal(replace(task("succeed"), role=Role.TRAINER, replicate=f"file://{more}/replicas"))


@pytest.mark.parametrize(
    "url",
    [
        "http://host/j/0.1",
        "zip::file:///w/x.zip",
        "s3://",
        "file://host/w",
        "github://a:b@/",
        "FILE:///w",
        "file:///w/#/../../out",
    ],
)
def test_a_replica_at_a_place_of_another_kind_is_refused(tmp_path: Path, url: str) -> None:
    made = Supervisor(settings_of(tmp_path), (MACHINE,), dict.fromkeys(Role, WORKER))
    trainer = replace(task("succeed"), role=Role.TRAINER)
    for wanted in (replace(trainer, replicate=url), replace(trainer, resume_from=url)):
        assert url in made.refusal(wanted)


@pytest.mark.parametrize(("policy", "fetches"), [("0.7", False), ("0.8", True), ("1.2", True), (None, True)])
def test_a_replica_is_not_fetched_if_the_run_has_its_checkpoint_or_a_newer_one(
    tmp_path: Path, policy: str | None, fetches: bool
) -> None:
    run, url = RunDirectory(tmp_path / "runs" / "j"), f"s3://bucket/j/{policy or '0.1'}"
    run.create()
    if policy is not None:
        (run.checkpoints / "0.7").mkdir()
        manifest = {"fork": 0, "version": 7, "job_id": "j"}
        (run.checkpoints / "0.7" / MANIFEST).write_text(json.dumps(manifest))
    assert resumed_from(replace(task("succeed"), role=Role.TRAINER, resume_from=url), run) == (
        url if fetches else str(run.root)
    )


def test_a_trainer_that_resumes_works_where_its_run_lies_whatever_the_work_directory(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    run = tmp_path / "elsewhere" / "j"
    for role, task_id, root in ((Role.TRAINER, "j/trainer", run), (Role.ROLLOUT, "j/rollout-0", tmp_path / "runs/j")):
        resumed = replace(task("succeed", task_id), role=role, resume_from=str(run), fork=1)
        supervisor.perform(Start(resumed, 2), 1.0)
        assert outcome(supervisor, task_id).state is TaskState.SUCCEEDED
        lines = (root / "logs" / f"{task_id[2:]}.log").read_text().splitlines()
        assert fork_of_start_line(lines[0]) == 1
        assert "at work" in lines


def test_a_failure_is_told_in_the_words_of_the_process_and_a_restart_appends_to_the_log(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    for restarts in range(2):
        supervisor.perform(Start(task("fail"), restarts), 1.0)
        assert outcome(supervisor) == TaskOutcome(state=TaskState.FAILED, message="the loss is not finite")
        assert supervisor.processes["j/rollout:0"].restarts == restarts
    assert (tmp_path / "runs" / "j" / "logs" / "rollout-0.log").read_text().count("at work") == 2


def test_a_killed_process_has_failed_and_the_message_names_the_signal(supervisor: Supervisor, scratch: Path) -> None:
    supervisor.perform(Start(task("die"), 0), 1.0)
    ended = outcome(supervisor)
    assert ended.state is TaskState.FAILED
    assert "signal 9" in ended.message
    assert not scratch.exists()


def test_what_a_dead_worker_had_started_goes_with_it(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.perform(Start(task("leave a child"), 0), 1.0)
    outcome(supervisor)
    child = int((tmp_path / "runs" / "j" / "child").read_text())
    wait_for(lambda: not is_alive(child))


def test_who_is_asked_to_stop_saves_and_stops(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.perform(Start(task("wait"), 0), 1.0)
    running_pid(tmp_path)
    supervisor.perform(AskToStop("j/rollout:0"), 5.0)
    assert supervisor.processes["j/rollout:0"].asked_to_stop_at_s == 5.0
    assert outcome(supervisor) == TaskOutcome(state=TaskState.STOPPED, message="")


def test_who_does_not_listen_is_killed(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.perform(Start(task("ignore"), 0), 1.0)
    pid = running_pid(tmp_path)
    supervisor.perform(AskToStop("j/rollout:0"), 5.0)
    supervisor.perform(Kill("j/rollout:0"), 6.0)
    assert "signal 9" in outcome(supervisor).message
    assert not is_alive(pid)


def test_stop_all_leaves_no_process_and_tells_how_each_ended(
    supervisor: Supervisor, tmp_path: Path, scratch: Path
) -> None:
    supervisor.perform(Start(task("ignore", "j/ignores"), 0), 1.0)
    deaf = running_pid(tmp_path)
    (tmp_path / "runs" / "j" / "running").unlink()
    supervisor.perform(Start(task("wait", "j/listens"), 0), 1.0)
    listening = running_pid(tmp_path)
    supervisor.perform(AskToStop("j/listens"), 2.0)
    asyncio.run(supervisor.stop_all(0.5, time.monotonic))
    assert not is_alive(deaf)
    assert not is_alive(listening)
    ended = {task_id: process.outcome for task_id, process in supervisor.processes.items()}
    assert ended["j/listens"] == TaskOutcome(state=TaskState.STOPPED, message=""), "it was asked a second time"
    assert ended["j/ignores"] is not None
    assert ended["j/ignores"].state is TaskState.FAILED
    assert not scratch.exists()


def test_what_cannot_be_started_has_failed_and_says_why(
    supervisor: Supervisor, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    supervisor.perform(Start(task("succeed"), 0), 1.0)
    ended = outcome(supervisor)
    assert ended.state is TaskState.FAILED
    assert "/does/not/exist" in ended.message
    assert not scratch.exists()


def test_a_task_whose_log_finds_no_room_runs_without_one(
    scratch: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "small", num_kib=64, num_inodes=2) as disk:
        (disk.root / "filler").touch()
        settings = replace(settings_of(tmp_path), work_dir=disk.root)
        supervisor = Supervisor(settings, (MACHINE,), dict.fromkeys(Role, WORKER))
        supervisor.perform(Start(task("succeed"), 0), 1.0)
        assert outcome(supervisor).state is TaskState.SUCCEEDED
    assert [record.message for record in caplog.records] == ["task_without_log"]


def test_a_process_sees_the_devices_of_its_task_alone_and_its_pace(tmp_path: Path, scratch: Path) -> None:
    settings = settings_of(tmp_path)
    pace = Pace(prefill_s=0.0, decode_s=0.5, training_s=0.25)
    cards, first = machine(accelerators=3), usable_cores()[0]
    cores = replace(cards, devices=(Device(index=0, kind=DeviceFamily.CPU, cores=(first,)),))
    unnamed = replace(cards, devices=(replace(cards.devices[0], index=5, uuid=""),))
    for offered, devices, cuda in ((cards, (2, 0), "GPU-2,GPU-0"), (cores, (0,), ""), (unnamed, (5,), "5")):
        supervisor = Supervisor(settings, (offered,), dict.fromkeys(Role, WORKER))
        supervisor.perform(Start(replace(task("look around"), machine="h", devices=devices, pace=pace), 0), 1.0)
        assert outcome(supervisor).state is TaskState.SUCCEEDED
        seen = json.loads((tmp_path / "runs" / "j" / "rollout:0").read_text())
        assert seen["cuda"] == cuda
        assert seen["pace"] == asdict(pace)
        assert seen["cores"] == ([first] if offered is cores else list(usable_cores()))


@pytest.mark.parametrize(
    ("machine_name", "device", "why"),
    [
        ("other", 0, "is planned on the machine other, and this agent starts processes on h"),
        ("h", 7, "is planned on device 7 of h, which has 0, 1"),
        ("h", 1, "is planned on device 1 of h, which does not work: it is lost"),
    ],
)
def test_a_task_of_another_machine_or_a_missing_or_broken_device_is_not_started(
    tmp_path: Path, scratch: Path, machine_name: str, device: int, why: str
) -> None:
    first, second = machine(accelerators=2).devices
    offered = replace(machine(), devices=(first, replace(second, problem="it is lost")))
    settings = settings_of(tmp_path)
    supervisor = Supervisor(settings, (offered,), dict.fromkeys(Role, WORKER))
    supervisor.perform(Start(replace(task("succeed"), machine=machine_name, devices=(device,)), 0), 1.0)
    ended = outcome(supervisor)
    assert (ended.state, ended.cause) == (TaskState.FAILED, FailureCause.DEVICE)
    assert why in ended.message


def test_a_device_that_vanished_between_two_starts_is_reported_as_lacking(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    worker = replace(task("fail"), machine="h", devices=(1,))
    supervisor.machines = (machine(accelerators=2),)
    supervisor.perform(Start(worker, 0), 1.0)
    outcome(supervisor)
    assert report(supervisor.processes[worker.task_id], worker).state is TaskState.STARTING
    supervisor.machines = (machine(accelerators=1),)
    supervisor.perform(Start(worker, 1), 2.0)
    told = report_to_pb(report(supervisor.processes[worker.task_id], worker))
    assert told.state == control_pb2.TASK_STATE_FAILED
    assert told.cause == FailureCause.DEVICE
    assert told.message == "j/rollout:0 is planned on device 1 of h, which has 0"


def test_an_output_directory_that_cannot_be_made_is_a_failure_of_the_task(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    (tmp_path / "runs").write_text("a file is in the way")
    supervisor.perform(Start(task("succeed"), 0), 1.0)
    assert outcome(supervisor).state is TaskState.FAILED


@contextmanager
def agent_with(
    behaviour: str, tmp_path: Path, scratch: Path, *, tied: bool = True
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process that starts one worker, as an agent does."""
    program = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from dataclasses import replace
        from periplus.values.task import Role
        from region_agent.control.reconcile import Start
        from region_agent.launchers.local import Supervisor
        from tests.region_agent.launchers.test_local import MACHINE, WORKER, settings_of, task
        settings = replace(settings_of(Path({str(tmp_path)!r})), ties_tasks={tied})
        Supervisor(settings, (MACHINE,), dict.fromkeys(Role, WORKER)).perform(Start(task({behaviour!r}), 0), 0.0)
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.processes
def test_a_worker_whose_agent_died_leaves(tmp_path: Path, scratch: Path) -> None:
    with agent_with("wait", tmp_path, scratch):
        pid = running_pid(tmp_path)
    wait_for(lambda: not is_alive(pid))


@pytest.mark.processes
def test_an_agent_adopts_the_processes_that_another_one_left_and_learns_how_they_end(
    tmp_path: Path, scratch: Path
) -> None:
    with agent_with("wait", tmp_path, scratch, tied=False):
        pid = running_pid(tmp_path)
    limits = RestartLimits(grace_s=10.0, backoff=Backoff(first_s=1.0))
    made = Supervisor(settings_of(tmp_path), (MACHINE,), dict.fromkeys(Role, WORKER))
    assert made.adopt(1.0) == {"j/rollout:0": task("wait")}
    assert not made.poll(2.0)
    assert made.processes["j/rollout:0"].outcome is None
    assert reconcile({"j/rollout:0": task("wait")}, made.processes, 3.0, limits) == ()
    made.perform(AskToStop("j/rollout:0"), 3.0)
    again = Supervisor(settings_of(tmp_path), (MACHINE,))
    again.adopt(4.0)
    assert again.processes["j/rollout:0"].asked_to_stop_at_s == 4.0, "it is not asked a second time"
    assert outcome(made).state is TaskState.STOPPED
    assert not is_alive(pid)
    assert not scratch.exists()


@pytest.mark.processes
def test_a_process_that_an_agent_of_another_version_left_is_killed(tmp_path: Path, scratch: Path) -> None:
    with agent_with("wait", tmp_path, scratch, tied=False):
        pid = running_pid(tmp_path)
    (noted,) = scratch.glob("*/process.json")
    tree = json.loads(noted.read_text())
    del tree["task"]["job_json"]
    noted.write_text(json.dumps(tree))
    assert Supervisor(settings_of(tmp_path), (MACHINE,)).adopt(1.0) == {}
    wait_for(lambda: not is_alive(pid))


@pytest.mark.processes
def test_a_process_that_ended_while_there_was_no_agent_is_reported_once(tmp_path: Path, scratch: Path) -> None:
    with agent_with("wait", tmp_path, scratch, tied=False):
        pid = running_pid(tmp_path)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    made = Supervisor(settings_of(tmp_path), (MACHINE,), dict.fromkeys(Role, WORKER))
    made.adopt(1.0)
    assert outcome(made).state is TaskState.FAILED
    assert Supervisor(settings_of(tmp_path), (MACHINE,)).adopt(1.0) == {}


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no process descriptors")
@pytest.mark.parametrize("dead", ["agent", "worker", "agent and worker"])
def test_an_engine_and_its_shared_memory_go_with_agent_worker_or_both(tmp_path: Path, scratch: Path, dead: str) -> None:
    with agent_with("run an engine", tmp_path, scratch) as agent:
        worker = running_pid(tmp_path)
        engine = json.loads((tmp_path / "runs" / "j" / "engine").read_text())
        assert all(is_alive(pid) and exists(block) for pid, block in engine)
        if dead != "agent":
            agent.send_signal(signal.SIGSTOP)  # it must not help
            os.kill(worker, signal.SIGKILL)
        if dead != "worker":
            agent.kill()
        wait_for(lambda: not any(is_alive(pid) or exists(block) for pid, block in engine))
        wait_for(lambda: not is_alive(worker))


def test_shared_memory_goes_with_what_the_agent_kills(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.perform(Start(task("run an engine"), 0), 1.0)
    running_pid(tmp_path)
    engine = json.loads((tmp_path / "runs" / "j" / "engine").read_text())
    supervisor.perform(Kill("j/rollout:0"), 6.0)
    outcome(supervisor)
    wait_for(lambda: not any(is_alive(pid) or exists(block) for pid, block in engine))
