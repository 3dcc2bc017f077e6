"""Tables and trees of jobs, regions and links, as operators and programs read them."""

import json
from dataclasses import replace
from typing import Any

from coordinator.client.listing import (
    JOBS,
    LINKS,
    MACHINES,
    REGIONS,
    Output,
    describe_fabric,
    describe_files,
    describe_job,
    job_details,
    job_tree,
    link_tree,
    region_tree,
    render,
)
from periplus.config.yaml_text import parse
from periplus.net.convert import inventory_to_pb
from periplus.pb.v1 import common_pb2, control_pb2
from periplus.values.machine import Device, DeviceFamily
from tests.support.coordinator.machines import inventory, machine
from tests.support.planner.predicted_plan import PLAN

JOB = control_pb2.Job(
    job_id="sums-1",
    name="sums",
    state=control_pb2.JOB_STATE_RUNNING,
    reason="evil \x1b[2J\ntext",
    submitted_at_s=100.0,
    policy=common_pb2.Policy(fork=1, version=7),
)


def test_a_table_is_aligned_and_free_of_control_characters() -> None:
    assert render(JOBS, [job_tree(JOB)], Output.TABLE, 165.0) == (
        "JOB     STATE    POLICY   AGE  REASON\nsums-1  running     1.7  1:05  evil  [2J text"
    )
    assert "NAME" in render(JOBS, [job_tree(JOB)], Output.WIDE, 165.0)


def test_programs_get_everything_under_a_versioned_schema() -> None:
    tree = json.loads(render(JOBS, [job_tree(JOB)], Output.JSON, 0.0))
    assert tree["schema"] == "periplus.jobs/1"
    assert tree["jobs"][0]["policy"] == {"fork": 1, "version": 7}
    assert parse(render(JOBS, [job_tree(JOB)], Output.YAML, 0.0), "test") == tree
    assert render(JOBS, [job_tree(JOB)], Output.NAME, 0.0) == "sums-1"


def test_a_job_shows_what_it_does_now() -> None:
    waiting = control_pb2.Job(job_id="sums-1", doing="waiting for disk: /r/\x1b[2J")
    assert "\ndoing      waiting for disk: /r/ [2J\n" in describe_job(waiting, 1.0)
    assert job_tree(waiting)["doing"] == waiting.doing
    assert "doing" not in describe_job(JOB, 1.0)
    assert "\nnotice     look\n" in describe_job(control_pb2.Job(job_id="sums-1", notice="look"), 1.0)


def test_a_run_whose_directory_was_removed_has_no_paths_and_no_command_that_resumes_it() -> None:
    files = control_pb2.RunFiles(run_dir="/runs/sums-1", checkpoint=common_pb2.Policy(fork=0, version=3))
    failed = control_pb2.Job(job_id="sums-1", state=control_pb2.JOB_STATE_FAILED, files=files)
    assert "resume: periplus job submit --resume /runs/sums-1" in describe_files(failed)
    gone = "/runs/sums-1 is gone, with its report, logs and checkpoints"
    assert describe_files(failed, is_gone=True) == [f"run directory: {gone}"]
    assert describe_job(failed, 1.0, is_gone=True).endswith(f"run directory  {gone}")


def test_an_empty_listing_is_empty_for_people_and_a_list_for_programs() -> None:
    assert render(REGIONS, [], Output.TABLE, 0.0) == ""
    assert json.loads(render(REGIONS, [], Output.JSON, 0.0))["regions"] == []


def test_a_region_and_a_link_show_what_is_known_of_them() -> None:
    report = control_pb2.TaskReport(task_id="j/trainer", job_id="j", state=control_pb2.TASK_STATE_RUNNING)
    offered = inventory_to_pb(inventory(machine(accelerators=2, memory_bytes=16_000_000_000)))
    region = control_pb2.Region(
        name="eu",
        state="ready",
        mode="open",
        gateway_address="eu:1",
        inventory=offered,
        tasks=[report],
        last_seen_s=9.0,
    )
    text = render(REGIONS, [region_tree(region)], Output.TABLE, 10.5)
    words = "eu ready open 4 16 GB 2 x NVIDIA L4 1 1.5 s"
    assert text.splitlines()[1].split() == words.split()
    unmeasured = link_tree(control_pb2.Link(src_region="eu", dst_region="us", sent_bytes=5))
    assert unmeasured["rtt_s"] is None
    assert render(LINKS, [unmeasured], Output.TABLE, 0.0).splitlines()[1].split() == [
        "eu",
        "us",
        "-",
        "-",
        "5",
        "B",
        "-",
        "-",
    ]


def test_a_region_that_cannot_be_dialled_shows_its_relay() -> None:
    def relay_of(relays: bool = False, **fields: Any) -> str:
        own = replace(inventory(machine()), relays=relays)
        region = control_pb2.Region(name="eu", inventory=inventory_to_pb(own), last_seen_s=9.0, **fields)
        head, row = render(REGIONS, [region_tree(region)], Output.TABLE, 10.5).splitlines()
        return row[head.index("RELAY") :].strip() if "RELAY" in head else ""

    assert relay_of(gateway_address="eu:1") == ""
    assert relay_of(True, gateway_address="eu:1") == "relays"
    assert relay_of(relay="us") == "via us"
    assert relay_of() == "none to reach it"


def test_a_link_shows_whether_it_is_measured_still_and_why_not() -> None:
    link = control_pb2.Link(src_region="eu", dst_region="us", throughput_bits_per_s=8e6, rtt_s=0.1, measured_at_s=100.0)

    def state_of(link: control_pb2.Link) -> str:
        return render(LINKS, [link_tree(link)], Output.TABLE, 400.0).splitlines()[1].rstrip()

    assert state_of(link).endswith(" ok")
    link.is_stale = True
    assert state_of(link).endswith(" stale")
    link.failure, link.failed_since_s = "us:1 does not answer", 340.0
    assert state_of(link).endswith("failed: us:1 does not answer (for 1:00)")
    tree = link_tree(link)
    assert (tree["rtt_s"], tree["state"], tree["failed_since_s"]) == (0.1, "failed", 340.0)
    assert link_tree(control_pb2.Link(failure="no route", failed_since_s=1.0))["measured_at_s"] is None


def test_an_emulated_accelerator_shows_its_slowdown() -> None:
    device = Device(index=0, kind=DeviceFamily.EMULATED, model="L4", slowdown=2000.0, usd_per_hour=0.5)
    offered = inventory_to_pb(inventory(replace(machine(), devices=(device, replace(device, index=1)))))
    tree = region_tree(control_pb2.Region(name="eu", inventory=offered))
    assert "2 x L4 (emulated, 2000 times slower)" in render(REGIONS, [tree], Output.TABLE, 0.0)
    shown = tree["machines"][0]["devices"][0]
    assert (shown["kind"], shown["slowdown"], shown["usd_per_hour"]) == ("emulated", 2000.0, 0.5)


def test_a_job_shows_the_bytes_between_its_regions_and_who_counted_them() -> None:
    pairs = [
        control_pb2.PairTraffic(src_region="eu", dst_region="us", sent_bytes=7_000),
        control_pb2.PairTraffic(src_region="us", dst_region="eu", sent_bytes=500),
    ]
    job = control_pb2.Job(job_id="sums-1", state=control_pb2.JOB_STATE_SUCCEEDED, traffic=pairs)
    tree = job_details(job)
    assert (tree["wan_bytes"], tree["wan_bytes_from"]) == (7_500, "gateways")
    assert tree["traffic"][0] == {"src_region": "eu", "dst_region": "us", "sent_bytes": 7_000}
    assert "7.50 kB between regions, counted by the gateways" in describe_job(job, 1.0)
    assert "7.50 kB" in render(JOBS, [job_tree(job)], Output.WIDE, 1.0)


def test_a_job_shows_each_process_with_its_devices_and_its_state() -> None:
    running, failed = control_pb2.TASK_STATE_RUNNING, control_pb2.TASK_STATE_FAILED
    placed = [
        control_pb2.JobProcess(
            task_id="s/trainer",
            region="eu",
            machine="n1",
            device="L4",
            devices=[0, 1],
            data=2,
            usd_per_hour=1.4,
            state=running,
        ),
        control_pb2.JobProcess(
            task_id="s/rollout-eu-0",
            region="eu",
            machine="n1",
            device="emulated-L4-2000",
            devices=[2],
            engine="torch",
            tensor=1,
        ),
        control_pb2.JobProcess(task_id="s/rollout-us-0", region="us", machine="n2", engine="torch", state=failed),
    ]
    job = control_pb2.Job(job_id="s", processes=placed)
    tree = job_details(job)["processes"]
    assert [each["devices"] for each in tree] == [[0, 1], [2], []]
    assert [each["usd_per_hour"] for each in tree] == [1.4, None, None]
    assert tree[1]["device"] == "emulated-L4-2000"
    assert describe_job(job, 1.0).split("\n\n")[1].splitlines() == [
        "TASK          REGION  MACHINE  DEVICE            DEVICES  ENGINE  TENSOR  DATA   $/H  STATE",
        "trainer       eu      n1       L4                0,1      -            -     2  1.40  running",
        "rollout-eu-0  eu      n1       emulated-L4-2000  2        torch        1     -     -  planned",
        "rollout-us-0  us      n2       cores             -        torch        -     -     -  failed",
    ]
    bare = control_pb2.Job(job_id="s", processes=[control_pb2.JobProcess(task_id="s/trainer", region="eu")])
    rows = describe_job(bare, 1.0).split("\n\n")[1].splitlines()
    assert [row.split() for row in rows] == [
        ["TASK", "REGION", "DEVICE", "STATE"],
        ["trainer", "eu", "cores", "planned"],
    ]
    assert "\n\n" not in describe_job(control_pb2.Job(job_id="s"), 1.0)


def test_a_job_shows_what_was_predicted_of_its_steps_beside_what_was_measured() -> None:
    job = control_pb2.Job(job_id="s", plan_json=PLAN.to_json(), measured={"step_s": 12.0, "train_s": 9.0})
    assert describe_job(job, 1.0).split("\n\n")[1:] == [
        "TERM              PREDICTED  SIMULATED  MEASURED  DIFFERENCE\n"
        "step                   10 s       11 s      12 s        +20%\n"
        "training                6 s      6.5 s       9 s        +50%\n"
        "waiting                 4 s      4.5 s         -           -\n"
        "publication               -          -         -           -\n"
        "generation in eu        9 s          -         -           -\n"
        "weights to eu           0 s          -         -           -\n"
        "samples of eu           25%          -         -           -\n"
        "generation in us        8 s     9.25 s         -           -\n"
        "weights to us           2 s     2.75 s         -           -\n"
        "samples of us           75%          -         -           -",
        "training: 50% more than predicted; probably samples have another length, or the trainer's devices another "
        "speed, than the plan counts with",
    ]
    assert job_details(job)["terms"][1]["difference"] == 0.5


def test_a_region_says_how_fast_its_machines_reach_each_other() -> None:
    offered = inventory(machine(), machine("h2"))
    assert describe_fabric(region_tree(control_pb2.Region(inventory=inventory_to_pb(offered)))) == ""
    known = replace(offered, fabric_bytes_per_s=1.2e9, fabric_latency_s=3e-4)
    tree = region_tree(control_pb2.Region(inventory=inventory_to_pb(known)))
    assert (tree["fabric_bytes_per_s"], tree["fabric_latency_s"]) == (1.2e9, 3e-4)
    assert describe_fabric(tree) == "fabric  1.20 GB/s, 0.3 ms between its machines"


def test_the_machines_of_a_region_are_listed_with_what_they_have() -> None:
    away = replace(machine("n1", groups=2), has_launcher=False)
    offered = inventory_to_pb(inventory(machine("n0", accelerators=2), away))
    tree = region_tree(control_pb2.Region(inventory=offered))
    first, *rows = [line.split("  ") for line in render(MACHINES, tree["machines"], Output.TABLE, 1.0).splitlines()]
    assert [[cell.strip() for cell in row if cell.strip()] for row in (first, *rows)] == [
        ["MACHINE", "CORES", "MEMORY", "ACCELERATORS", "ENGINES", "JOBS"],
        ["n0", "4", "8.59 GB", "2 x NVIDIA L4", "torch", "yes"],
        ["n1", "4", "8.59 GB", "-", "torch", "nothing can be started there"],
    ]
