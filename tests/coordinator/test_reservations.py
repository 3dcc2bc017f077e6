"""Devices that jobs hold: accelerators alone, groups of cores as often as the coordinator lets them be shared."""

from dataclasses import replace

from coordinator.events import (
    InventoryChanged,
    JobSubmitted,
    PlanFinished,
    RegionJoined,
    RegionLeft,
    RunPlanner,
    StepRecorded,
    TaskReported,
)
from coordinator.machine.reservations import device_counts
from coordinator.state import JobState, PlacedProcess, PlacedProcesses
from periplus.values.machine import DeviceCount, Pace
from periplus.values.task import FailureCause, Role, RunFiles, TaskState
from tests.support.coordinator.machine_run import (
    SETTINGS,
    Run,
    desired_tasks,
    free,
    hello,
    infeasible,
    record,
    report,
    request,
)
from tests.support.coordinator.machines import machine

MEMORY = machine().memory_bytes


def fleet(jobs_per_region: int = 1, groups: int = 1, accelerators: int = 0) -> Run:
    """One region `eu` with these devices."""
    run = Run(replace(SETTINGS, jobs_per_region=jobs_per_region))
    run.do(RegionJoined(hello("eu", groups=groups, accelerators=accelerators), 1))
    return run


def submit(run: Run, job_id: str, *, trainer: int = 1, worker: int = 1, workers: int = 1) -> None:
    run.do(JobSubmitted(job_id, job_id, request()))
    run.place(job_id, "eu", "eu", workers=workers, devices=(trainer, worker))


def held(run: Run) -> dict[str, tuple[int, ...]]:
    return {task.task_id.replace("rollout-eu-", ""): task.devices for task in desired_tasks(run.state, "eu")}


def test_each_process_gets_devices_of_its_own_on_the_agents_machine() -> None:
    run = fleet(accelerators=8)
    submit(run, "j", trainer=2, worker=2, workers=2)
    submit(run, "k")
    assert held(run) == {"j/trainer": (0, 1), "j/0": (2, 3), "j/1": (4, 5), "k/trainer": (6,), "k/0": (7,)}
    assert {task.machine for task in desired_tasks(run.state, "eu")} == {"host-of-eu-boot"}
    assert device_counts(run.state) == {}


def test_a_machine_that_is_too_small_is_shared_by_the_processes_of_one_job() -> None:
    for trainer, workers, devices, shared in (
        (1, 2, 1, {"j/trainer": (0,), "j/0": (0,), "j/1": (0,)}),
        (1, 3, 3, {"j/trainer": (0,), "j/0": (1,), "j/1": (2,), "j/2": (1,)}),
        (4, 1, 2, {"j/trainer": (0, 1), "j/0": (0,)}),
    ):
        run = fleet(accelerators=devices)
        submit(run, "j", trainer=trainer, workers=workers)
        assert held(run) == shared


def test_a_job_that_needs_more_than_is_free_waits_and_says_for_what() -> None:
    run = fleet(accelerators=4)
    submit(run, "j", workers=2)
    assert device_counts(run.state) == {"eu": DeviceCount(1, 4, MEMORY)}
    submit(run, "k", workers=2)
    assert run.job("k").state is JobState.PENDING, "three of its own are not free, and one is not the whole machine"
    run.do(PlanFinished("k", device_counts(run.state), infeasible("three devices")))
    assert run.job("k").reason.startswith(
        "does not fit what is free (three devices); waits for what is in use (held by j in eu, 1 of whose 4 "
        "accelerators are free, until the job ends"
    )
    run.says("eu", "j/trainer", TaskState.SUCCEEDED)
    assert RunPlanner("k", {"eu": DeviceCount(4, 4, MEMORY)}) in run.effects


def test_accelerators_are_never_shared_by_jobs_and_cores_as_often_as_is_said() -> None:
    for accelerators, waits in ((0, False), (2, True)):
        run = fleet(jobs_per_region=2, groups=2, accelerators=accelerators)
        submit(run, "j")
        submit(run, "k")
        assert (run.job("k").state is JobState.PENDING) == waits


def test_processes_that_still_end_hold_their_devices() -> None:
    run = fleet(groups=3)
    submit(run, "j")
    run.says("eu", "j/trainer", TaskState.RUNNING)
    run.says("eu", "j/rollout-eu-0", TaskState.RUNNING)
    run.says("eu", "j/trainer", TaskState.SUCCEEDED)
    assert device_counts(run.state) == {"eu": DeviceCount(2, 3, MEMORY)}
    run.says("eu", "j/rollout-eu-0", TaskState.STOPPED)
    assert device_counts(run.state) == {"eu": DeviceCount(3, 3, MEMORY)}


def test_a_job_waits_for_all_that_comes_free_together() -> None:
    """Regions of a job that has ended come free one by one. A plan on the first would never get the others."""
    run = Run()
    run.join("eu", "us")
    run.measure_all()
    run.do(JobSubmitted("j", "j", request()))
    run.place("j", "eu", "eu", "us")
    for region, task in (("eu", "j/trainer"), ("eu", "j/rollout-eu-0"), ("us", "j/rollout-us-0")):
        run.says(region, task, TaskState.RUNNING)
    run.do(JobSubmitted("k", "k", request()))
    run.says("eu", "j/trainer", TaskState.SUCCEEDED)
    run.says("eu", "j/rollout-eu-0", TaskState.STOPPED)
    assert run.job("k").reason == "waits for the processes of j in us to end, for at most 60 s"
    assert RunPlanner("k", free("eu", "us")) in run.says("us", "j/rollout-us-0", TaskState.STOPPED)


def test_a_process_that_nobody_can_end_does_not_hold_up_the_fleet() -> None:
    run = fleet(groups=3)
    submit(run, "j")
    run.says("eu", "j/rollout-eu-0", TaskState.RUNNING)
    run.says("eu", "j/trainer", TaskState.SUCCEEDED)
    run.do(JobSubmitted("k", "k", request()))
    assert "to end" in run.job("k").reason
    run.now_s += 61
    run.says("eu", "j/rollout-eu-0", TaskState.RUNNING, "still there")
    assert RunPlanner("k", {"eu": DeviceCount(2, 3, MEMORY)}) in run.effects


def test_a_device_that_does_not_work_is_given_to_nobody_until_it_works_again() -> None:
    run = fleet(accelerators=3)
    known = run.state.regions["eu"].hello.inventory
    first, second, third = known.own.devices
    broken = replace(known, machines=(replace(known.own, devices=(first, replace(second, problem="lost"), third)),))
    run.do(InventoryChanged(run.stamp("eu"), broken))
    submit(run, "j")
    assert held(run) == {"j/trainer": (0,), "j/0": (2,)}
    assert device_counts(run.state) == {}
    run.says("eu", "j/rollout-eu-0", TaskState.RUNNING)
    run.do(InventoryChanged(run.stamp("eu"), known))
    assert device_counts(run.state) == {"eu": DeviceCount(1, 3, MEMORY)}


def test_a_job_that_has_not_started_is_planned_again_when_more_devices_come_free() -> None:
    run = fleet(accelerators=4)
    submit(run, "first", workers=1)
    submit(run, "second", workers=1)
    effects = run.says("eu", "first/trainer", TaskState.FAILED)
    assert run.job("second").state is JobState.PENDING
    assert run.job("second").fork == 1, "what was sent for the first placement is not taken for the second one"
    assert RunPlanner("second", {"eu": DeviceCount(4, 4, MEMORY)}) in effects


def test_what_a_later_job_gives_back_is_planned_for_the_earlier_one_first() -> None:
    run = Run()
    run.join("ap", "us")
    run.measure_all()
    run.do(RegionLeft("us", run.state.regions["us"].epoch))
    run.do(JobSubmitted("j", "j", request(2)))
    run.do(JobSubmitted("k", "k", request()))
    run.place("k", "ap", "ap")
    assert run.job("j").reason.startswith("waits for 2 free regions, 0 there (held by k in ap")
    run.join("us")
    run.measure_all()
    assert (run.job("j").reason, run.job("k").state) == ("", JobState.PENDING)
    assert run.state.planning == "j"


def test_a_job_whose_process_cannot_start_is_planned_again_without_that_device() -> None:
    run = fleet(accelerators=3)
    submit(run, "j")
    assert held(run) == {"j/trainer": (0,), "j/0": (1,)}
    gone = replace(report("j/trainer", TaskState.FAILED, "device 0 is not there"), cause=FailureCause.DEVICE)
    run.do(TaskReported(run.stamp("eu"), gone))
    job = run.job("j")
    assert (job.state, job.fork) == (JobState.PENDING, 1)
    assert job.avoided == {("eu", "host-of-eu-boot", 0)}
    assert job.notice == "planned again without device 0 of host-of-eu-boot in eu: device 0 is not there"
    assert held(run) == {}, "nothing of the first placement goes on"
    run.do(InventoryChanged(run.stamp("eu"), run.state.regions["eu"].hello.inventory))
    assert run.job("j").avoided == frozenset(), "what the machine has now is what counts"


def test_a_job_whose_engine_does_not_start_is_planned_again_without_it_in_that_region() -> None:
    run = fleet(accelerators=3)
    run.do(JobSubmitted("j", "j", request()))
    processes = (
        PlacedProcess(role=Role.TRAINER, region="eu"),
        PlacedProcess(role=Role.ROLLOUT, region="eu", engine="vllm", tensor=2, num_devices=2),
    )
    run.do(PlanFinished("j", device_counts(run.state), PlacedProcesses(processes=processes, plan_json="{}")))
    run.says("eu", "j/trainer", TaskState.RUNNING)
    files = RunFiles(run_dir="/run", log="/run/log")
    refused = replace(
        report("j/rollout-eu-0", TaskState.FAILED, "no such degree"), cause=FailureCause.ENGINE, files=files
    )
    effects = run.do(TaskReported(run.stamp("eu"), refused))
    assert (run.job("j").state, run.job("j").fork) == (JobState.PENDING, 1)
    assert run.job("j").refused_engines == {("eu", "vllm")}
    assert not any(isinstance(each, RunPlanner) for each in effects), "the trainer of the first fork still ends"
    # Without the engine there is no plan, and the end of the job says what was tried.
    effects = run.do(TaskReported(run.stamp("eu"), report("j/trainer", TaskState.STOPPED)))
    assert RunPlanner("j", {"eu": DeviceCount(3, 3, MEMORY)}) in effects
    run.do(PlanFinished("j", device_counts(run.state), infeasible("no region has vllm")))
    assert run.job("j").state is JobState.FAILED
    assert run.job("j").reason == ("infeasible: no region has vllm; planned again without vllm in eu: no such degree")


def test_a_device_that_vanishes_between_two_starts_of_a_worker_is_blamed_and_not_its_engine() -> None:
    run = fleet(accelerators=3)
    run.do(JobSubmitted("j", "j", request()))
    processes = (
        PlacedProcess(role=Role.TRAINER, region="eu"),
        PlacedProcess(role=Role.ROLLOUT, region="eu", engine="torch"),
    )
    run.do(PlanFinished("j", device_counts(run.state), PlacedProcesses(processes=processes, plan_json="{}")))
    files = RunFiles(run_dir="/run", log="/run/log")
    run.says("eu", "j/rollout-eu-0", TaskState.RUNNING, files=files)
    run.says("eu", "j/rollout-eu-0", TaskState.STARTING, "it crashed", files=files)
    failed = report("j/rollout-eu-0", TaskState.FAILED, "device 1 is not there", files=files)
    run.do(TaskReported(run.stamp("eu"), replace(failed, cause=FailureCause.DEVICE, restarts=1)))
    job = run.job("j")
    assert (job.state, job.fork) == (JobState.PENDING, 1)
    assert job.avoided == {("eu", "host-of-eu-boot", 1)}
    assert job.refused_engines == frozenset()
    assert job.notice == "planned again without device 1 of host-of-eu-boot in eu: device 1 is not there"


def test_an_engine_that_fails_after_the_first_step_does_not_move_its_job() -> None:
    run = fleet(accelerators=3)
    submit(run, "j")
    run.do(StepRecorded(run.stamp("eu"), "j", record(1)))
    refused = replace(report("j/rollout-eu-0", TaskState.FAILED, "out of memory"), cause=FailureCause.ENGINE)
    run.do(TaskReported(run.stamp("eu"), refused))
    assert (run.job("j").state, run.job("j").fork) == (JobState.FAILED, 0)


def test_a_plan_that_does_not_fit_what_it_was_made_for_fails_its_job() -> None:
    run = fleet(accelerators=2)
    run.do(JobSubmitted("j", "j", request()))
    twice = PlacedProcess(role=Role.ROLLOUT, region="eu", device="L4", devices=(0,))
    processes = (replace(twice, role=Role.TRAINER), twice)
    run.do(PlanFinished("j", device_counts(run.state), PlacedProcesses(processes=processes, plan_json="{}")))
    assert run.job("j").state is JobState.FAILED
    assert "does not fit the devices that it was made for" in run.job("j").reason


def test_processes_that_share_an_emulated_device_have_equal_parts_of_its_pace() -> None:
    pace = Pace(prefill_s=1.0, decode_s=2.0, training_s=3.0)
    for devices, trainer, workers, parts in (
        (4, 2, 2, {"j/trainer": 1, "j/0": 1, "j/1": 1}),
        (1, 1, 2, {"j/trainer": 3, "j/0": 3, "j/1": 3}),
        (3, 1, 3, {"j/trainer": 1, "j/0": 2, "j/1": 1, "j/2": 2}),
        (2, 4, 1, {"j/trainer": 3, "j/0": 3}),  # four processes of the trainer, and a worker on one of its devices
    ):
        run = fleet(accelerators=devices)
        run.do(JobSubmitted("j", "j", request()))
        placed = (
            PlacedProcess(role=Role.TRAINER, region="eu", num_devices=trainer, pace=pace),
            *[PlacedProcess(role=Role.ROLLOUT, region="eu", pace=pace)] * workers,
        )
        run.do(PlanFinished("j", device_counts(run.state), PlacedProcesses(processes=placed, plan_json="{}")))
        tasks = {task.task_id.replace("rollout-eu-", ""): task.pace for task in desired_tasks(run.state, "eu")}
        assert tasks == {task: pace.shared(number) for task, number in parts.items()}
    assert pace.shared(2) == Pace(prefill_s=2.0, decode_s=4.0, training_s=6.0)


def test_workers_by_turns_use_the_trainers_devices_at_their_full_pace() -> None:
    pace = Pace(prefill_s=1.0, decode_s=2.0, training_s=3.0)
    run = fleet(accelerators=3)
    run.do(JobSubmitted("j", "j", request()))
    by_turns = PlacedProcess(role=Role.ROLLOUT, region="eu", pace=pace, by_turns=True)
    placed = (
        PlacedProcess(role=Role.TRAINER, region="eu", num_devices=2, pace=pace),
        by_turns,
        by_turns,
        PlacedProcess(role=Role.ROLLOUT, region="eu", pace=pace),
    )
    run.do(PlanFinished("j", device_counts(run.state), PlacedProcesses(processes=placed, plan_json="{}")))
    assert held(run) == {"j/trainer": (0, 1), "j/0": (0,), "j/1": (1,), "j/2": (2,)}
    tasks = {task.task_id.replace("rollout-eu-", ""): task for task in desired_tasks(run.state, "eu")}
    assert {name: task.by_turns for name, task in tasks.items()} == {
        "j/trainer": True,
        "j/0": True,
        "j/1": True,
        "j/2": False,
    }
    assert {task.pace for task in tasks.values()} == {pace}
