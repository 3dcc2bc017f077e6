"""A region of several machines: which machine and devices each process gets, and what happens as machines go."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from coordinator.doing import doing
from coordinator.events import (
    FleetEvent,
    InventoryChanged,
    JobSubmitted,
    PlanFinished,
    RegionJoined,
    StepRecorded,
    TaskReported,
    Ticked,
)
from coordinator.machine.reservations import device_counts, free_memory
from coordinator.state import JobState, PlacedProcess, PlacedProcesses
from periplus.values.machine import DeviceCount, Machine, MachineDevices
from periplus.values.task import FailureCause, Role, RunFiles, TaskState
from tests.support.coordinator.machine_run import SETTINGS, Run, desired_tasks, hello, record, report, request
from tests.support.coordinator.machines import TORCH, inventory, machine

GB = 10**9
FILES = RunFiles(run_dir="/run", log="/run/log")


def region(*machines: Machine, jobs_per_region: int = 1) -> Run:
    run = Run(replace(SETTINGS, jobs_per_region=jobs_per_region))
    run.do(RegionJoined(replace(hello("eu"), inventory=inventory(*machines)), 1))
    return run


def submit(run: Run, job_id: str, *processes: PlacedProcess) -> None:
    run.do(JobSubmitted(job_id, job_id, replace(request(), max_trainer_restarts=3)))
    run.do(PlanFinished(job_id, device_counts(run.state), PlacedProcesses(processes=processes, plan_json="{}")))


def trainer(num_devices: int = 1, **fields: object) -> PlacedProcess:
    return PlacedProcess(role=Role.TRAINER, region="eu", num_devices=num_devices, **fields)  # type: ignore[arg-type]


def worker(num_devices: int = 1, **fields: object) -> PlacedProcess:
    return PlacedProcess(role=Role.ROLLOUT, region="eu", num_devices=num_devices, **fields)  # type: ignore[arg-type]


def places(run: Run) -> Mapping[str, tuple[MachineDevices, ...]]:
    return {
        task.task_id.replace("rollout-eu-", ""): (MachineDevices(task.machine, task.devices), *task.others)
        for task in desired_tasks(run.state, "eu")
    }


def on(machine: str, *devices: int) -> MachineDevices:
    return MachineDevices(machine, devices)


def test_all_machines_on_which_processes_start_are_given_out() -> None:
    run = region(machine("n0", accelerators=2), machine("n1", accelerators=2))
    assert device_counts(run.state) == {"eu": DeviceCount(4, 4, 16 << 30)}
    submit(run, "j", trainer(), worker(2), worker())
    assert places(run) == {"j/0": (on("n0", 0, 1),), "j/trainer": (on("n1", 0),), "j/1": (on("n1", 1),)}
    assert device_counts(run.state) == {}


def test_the_devices_of_a_worker_are_never_on_two_machines() -> None:
    run = region(machine("n0", accelerators=1), machine("n1", accelerators=1), machine("n2", accelerators=1))
    submit(run, "j", trainer(), worker(2))
    assert run.job("j").state is JobState.FAILED
    assert "does not fit the devices" in run.job("j").reason


def test_a_trainer_spans_machines_only_if_none_is_large_enough() -> None:
    run = region(machine("n0", accelerators=2), machine("n1", accelerators=4))
    submit(run, "j", trainer(4), worker())
    assert places(run) == {"j/trainer": (on("n1", 0, 1, 2, 3),), "j/0": (on("n0", 0),)}
    run = region(machine("n0", accelerators=2), machine("n1", accelerators=4))
    submit(run, "j", trainer(5), worker())
    assert places(run) == {"j/0": (on("n0", 0),), "j/trainer": (on("n1", 0, 1, 2, 3), on("n0", 1))}


def test_rank_0_is_where_the_plan_says() -> None:
    run = region(machine("n0", accelerators=2), machine("n1", accelerators=2))
    submit(run, "j", trainer(3, machine="n1"), worker())
    assert places(run)["j/trainer"] == (on("n1", 0, 1), on("n0", 1))
    run = region(machine("n0", accelerators=2), machine("n1", accelerators=2))
    submit(run, "j", trainer(machine="n1", devices=(1,)), worker(machine="n1"))
    assert places(run) == {"j/trainer": (on("n1", 1),), "j/0": (on("n1", 0),)}


def test_devices_of_one_index_on_two_machines_are_not_one_device() -> None:
    run = region(machine("n0", accelerators=1), machine("n1", accelerators=1), machine("n2", accelerators=2))
    submit(run, "j", trainer(), worker())
    assert places(run) == {"j/trainer": (on("n0", 0),), "j/0": (on("n1", 0),)}
    submit(run, "k", trainer(), worker())
    assert places(run)["k/trainer"] == (on("n2", 0),)


def test_jobs_that_share_cores_get_those_that_fewest_hold() -> None:
    run = region(machine("n0", groups=2), machine("n1", groups=2), jobs_per_region=2)
    for job_id in ("j", "k"):
        submit(run, job_id, trainer(), worker())
    assert places(run) == {
        "j/trainer": (on("n0", 0),),
        "j/0": (on("n0", 1),),
        "k/trainer": (on("n1", 0),),
        "k/0": (on("n1", 1),),
    }


def test_processes_that_share_an_idle_region_stay_on_one_machine_each() -> None:
    run = region(machine("n0"), machine("n1"))
    submit(run, "j", trainer(2), worker(), worker())
    assert places(run) == {"j/trainer": (on("n0", 0), on("n1", 0)), "j/0": (on("n0", 0),), "j/1": (on("n1", 0),)}


def test_memory_is_each_machines_own() -> None:
    run = region(machine("n0", groups=3, memory_bytes=8 * GB), machine("n1", groups=2, memory_bytes=8 * GB))
    submit(run, "j", trainer(memory_bytes=6 * GB), worker(memory_bytes=3 * GB))
    assert places(run) == {"j/trainer": (on("n1", 0),), "j/0": (on("n0", 0),)}
    assert free_memory(run.state, "eu") == 7 * GB
    submit(run, "k", trainer(memory_bytes=6 * GB), worker())
    assert run.job("k").state is JobState.PENDING, "no machine has 6 GB left"


def test_a_worker_goes_where_its_engine_is() -> None:
    vllm = replace(TORCH, name="vllm")
    run = region(machine("n0", groups=2), machine("n1", engines=(TORCH, vllm)))
    submit(run, "j", trainer(), worker(engine="vllm"))
    assert places(run)["j/0"] == (on("n1", 0),)


def test_workers_by_turns_use_devices_of_one_machine_of_the_trainer() -> None:
    run = region(machine("n0", accelerators=2), machine("n1", accelerators=3))
    turns = {"by_turns": True}
    submit(run, "j", trainer(5), worker(2, **turns), worker(2, **turns))
    assert places(run) == {
        "j/trainer": (on("n1", 0, 1, 2), on("n0", 0, 1)),
        "j/0": (on("n1", 0, 1),),
        "j/1": (on("n0", 0, 1),),
    }


def test_a_machine_that_comes_lets_a_waiting_job_start() -> None:
    run = region(machine("n0", accelerators=2))
    submit(run, "j", trainer(), worker())
    run.says("eu", "j/trainer", TaskState.RUNNING)
    run.do(JobSubmitted("k", "k", request()))
    assert run.job("k").reason.startswith("waits for 1 free region")
    run.do(InventoryChanged(run.stamp("eu"), inventory(machine("n0", accelerators=2), machine("n1", accelerators=2))))
    submitted = PlacedProcesses(processes=(trainer(), worker()), plan_json="{}")
    run.do(PlanFinished("k", device_counts(run.state), submitted))
    assert places(run)["k/trainer"] == (on("n1", 0),)


def trained(run: Run, *machines: Machine) -> None:
    """Let the tasks of job j run and its trainer take a step; then the region has these machines alone."""
    for task_id in run.job("j").tasks:
        run.says("eu", task_id, TaskState.RUNNING, files=FILES)
    run.do(StepRecorded(run.stamp("eu"), "j", record(1)))
    run.do(InventoryChanged(run.stamp("eu"), inventory(*machines)))


def fails(run: Run, task_id: str, message: str, cause: FailureCause = FailureCause.PASSING) -> None:
    run.do(TaskReported(run.stamp("eu"), replace(report(task_id, TaskState.FAILED, message, files=FILES), cause=cause)))


def test_a_worker_whose_machine_is_gone_moves_and_its_job_goes_on() -> None:
    nodes = [machine("n0", accelerators=1), machine("n1", accelerators=1), machine("n2", accelerators=1)]
    run = region(*nodes)
    submit(run, "j", trainer(), worker())
    trained(run, nodes[0], nodes[2])
    assert places(run)["j/0"] == (on("n1", 0),), "its agent has not said that it cannot be started again"
    effects = run.do(
        TaskReported(
            run.stamp("eu"),
            replace(report("j/rollout-eu-0", TaskState.FAILED, "n1 is gone", files=FILES), cause=FailureCause.DEVICE),
        )
    )
    assert (run.job("j").state, places(run)["j/0"]) == (JobState.RUNNING, (on("n2", 0),))
    told = [each.text for each in effects if isinstance(each, FleetEvent)]
    assert "j/rollout-eu-0 starts again on n2, since devices of n1 are gone" in told


def test_a_worker_moves_once_there_is_room() -> None:
    nodes = [machine("n0", accelerators=2), machine("n1", accelerators=2)]
    run = region(*nodes)
    submit(run, "j", trainer(), worker(), worker())
    lost = next(task_id for task_id, task in run.job("j").tasks.items() if task.machine == "n1")
    trained(run, nodes[0])
    fails(run, lost, "n1 is gone", FailureCause.DEVICE)
    assert run.job("j").tasks[lost].ended
    run.do(InventoryChanged(run.stamp("eu"), inventory(nodes[0], machine("n3", accelerators=1))))
    assert (run.job("j").tasks[lost].machine, run.job("j").tasks[lost].report) == ("n3", None)


def test_a_job_whose_only_worker_is_lost_waits_for_devices() -> None:
    nodes = [machine("n0", accelerators=2), machine("n1", accelerators=2)]
    run = region(*nodes)
    submit(run, "j", trainer(2), worker())
    trained(run, nodes[0])
    fails(run, "j/rollout-eu-0", "n1 is gone", FailureCause.DEVICE)
    assert run.job("j").state is JobState.RUNNING
    waits = "a worker waits for other devices in eu, until they come or the job is cancelled"
    assert waits in doing(run.state, run.job("j"), run.now_s)
    run.do(InventoryChanged(run.stamp("eu"), inventory(*nodes)))
    assert places(run)["j/0"] == (on("n1", 0),)
    assert waits not in doing(run.state, run.job("j"), run.now_s)


def test_a_region_whose_cluster_is_away_offers_nothing() -> None:
    node = machine("n0", accelerators=2)
    run = region(node)
    assert set(device_counts(run.state)) == {"eu"}
    run.do(InventoryChanged(run.stamp("eu"), inventory(replace(node, has_launcher=False))))
    assert device_counts(run.state) == {}
    run.do(InventoryChanged(run.stamp("eu"), inventory(node)))
    assert set(device_counts(run.state)) == {"eu"}


def test_a_trainer_that_lost_a_machine_starts_again_on_others() -> None:
    nodes = [machine(name, accelerators=2) for name in ("n0", "n1", "n2")]
    run = region(*nodes)
    submit(run, "j", trainer(3), worker())
    assert places(run)["j/trainer"] == (on("n1", 0, 1), on("n2", 0))
    trained(run, *nodes[:2])
    fails(run, "j/trainer", "rank 2 of 3 on n2 is lost")
    run.now_s += 2
    run.do(Ticked())
    assert places(run)["j/trainer"] == (on("n1", 0, 1), on("n0", 1))
    assert run.job("j").fork == 1


def test_a_trainer_waits_for_devices_if_no_other_machine_has_them() -> None:
    nodes = [machine("n0", accelerators=1), machine("n1", accelerators=2)]
    run = region(*nodes)
    submit(run, "j", trainer(2), worker())
    trained(run, nodes[0])
    fails(run, "j/trainer", "n1 is gone", FailureCause.PASSING)
    run.now_s += 2
    run.do(Ticked())
    assert "j/trainer" not in places(run)
    waits = "waits for 2 devices in eu for its trainer, which had those of n1, until they come or it is cancelled"
    assert doing(run.state, run.job("j"), run.now_s).startswith(waits)
    run.do(InventoryChanged(run.stamp("eu"), inventory(*nodes)))
    assert places(run)["j/trainer"] == (on("n1", 0, 1),)


@pytest.mark.parametrize("name", ["n0", "renamed"])
def test_the_tasks_of_a_region_of_one_machine_follow_its_name(name: str) -> None:
    run = region(machine("n0", accelerators=2))
    submit(run, "j", trainer(), worker())
    run.do(InventoryChanged(run.stamp("eu"), inventory(machine(name, accelerators=2))))
    assert places(run) == {"j/trainer": (on(name, 0),), "j/0": (on(name, 1),)}
    assert device_counts(run.state) == {}
