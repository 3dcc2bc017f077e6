"""Converts jobs, regions and links of the coordinator into trees and tables for an operator.

A tree has the protocol's field names and is printed as JSON or YAML. A `Listing` names the columns of a table that is
made of such trees (`periplus/view/terminal/listing.py`). All functions are pure; the current time is an argument.
"""

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime

from coordinator.client.connection import job_state, named_state, task_state
from coordinator.state import ENDED_STATES, JobState
from periplus.config.loading import tree_of
from periplus.net.convert import inventory_from_pb
from periplus.pb.v1 import control_pb2
from periplus.values.machine import DeviceFamily, Machine
from periplus.values.policy import Policy
from periplus.values.profile import Profile
from periplus.values.task import resume_command
from periplus.view import units
from periplus.view.state import printable
from periplus.view.summary import WanCounter
from periplus.view.terminal.listing import Column, Listing, Output, Tree, columns_of, render, render_tree
from periplus.view.terms import figure, largest_difference, terms_of
from planner.explain.processes import device_words

__all__ = [
    "JOBS",
    "LINKS",
    "REGIONS",
    "TASKS",
    "Column",
    "Listing",
    "Output",
    "Tree",
    "columns_of",
    "describe_fleet_event",
    "describe_job",
    "fleet_event_tree",
    "job_details",
    "job_tree",
    "link_tree",
    "region_tree",
    "render",
    "render_tree",
]


# ---- trees -----------------------------------------------------------------------------------------------------------


def job_tree(job: control_pb2.Job) -> Tree:
    """Return a job as a tree, without its job file and plan, which `job_details` adds."""
    policy = {"fork": job.policy.fork, "version": job.policy.version} if job.HasField("policy") else None
    return {
        "job_id": job.job_id,
        "name": job.name,
        "state": job_state(job),
        "reason": job.reason,
        "doing": job.doing,
        "notice": job.notice,
        "policy": policy,
        "submitted_at_s": round(job.submitted_at_s, 3),
        "wan_bytes": sum(pair.sent_bytes for pair in job.traffic),
        "wan_bytes_from": WanCounter.GATEWAYS.value,
        "replica": job.replica,
        "files": _files_tree(job.files) if job.HasField("files") else None,
    }


def _files_tree(files: control_pb2.RunFiles) -> Tree:
    """Return the run's paths on the trainer's host; None for a file that does not exist or is not known yet."""
    checkpoint = {"fork": files.checkpoint.fork, "version": files.checkpoint.version}
    return {
        "run_dir": files.run_dir,
        "log": files.log,
        "report": files.report or None,
        "checkpoint": checkpoint if files.HasField("checkpoint") else None,
    }


def fleet_event_tree(event: control_pb2.FleetEvent) -> Tree:
    """Return an event of the fleet as a tree."""
    return {
        "number": event.number,
        "time_s": round(event.time_s, 3),
        "kind": event.kind,
        "job_id": event.job_id or None,
        "region": event.region or None,
        "actor": event.actor or None,
        "text": event.text,
    }


def describe_fleet_event(event: control_pb2.FleetEvent) -> str:
    """Return an event of the fleet as a line of text."""
    at = datetime.fromtimestamp(event.time_s, UTC)
    about = " ".join(filter(None, (event.job_id, event.region)))
    who = f" ({event.actor})" if event.actor else ""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC  {event.kind}  {about}{': ' if about else ''}{event.text}{who}"


def job_details(job: control_pb2.Job) -> Tree:
    """Return a job as a tree with the bytes sent between regions, its processes, its job file and its plan.

    There are no processes, and the plan is None, before the job is placed.
    """
    plan = json.loads(job.plan_json) if job.plan_json else None
    terms = terms_of(plan, job.measured) if plan and job.measured else ()
    return {
        "schema": "periplus.job-status/1",
        **job_tree(job),
        "traffic": [
            {"src_region": pair.src_region, "dst_region": pair.dst_region, "sent_bytes": pair.sent_bytes}
            for pair in job.traffic
        ],
        "processes": [
            {
                "task_id": each.task_id,
                "region": each.region,
                "machine": each.machine,
                "device": each.device,
                "devices": list(each.devices),
                "others": [{"machine": more.machine, "devices": list(more.devices)} for more in each.others],
                "engine": each.engine,
                "tensor": each.tensor,
                "data": each.data,
                "usd_per_hour": each.usd_per_hour or None,
                "state": named_state(each.state) if each.state else "planned",
            }
            for each in job.processes
        ],
        "terms": [{**asdict(each), "difference": each.difference} for each in terms],
        "largest_difference": largest_difference(terms),
        "plan": plan,
        "job": json.loads(job.job_json) if job.job_json else None,
    }


def region_tree(region: control_pb2.Region) -> Tree:
    """Return a region as a tree, with its machines, their devices, engines and tasks. The agent's own comes first."""
    inventory = inventory_from_pb(region.inventory)
    own = inventory.own
    return {
        "name": region.name,
        "state": region.state,
        "mode": region.mode,
        "replica_store": inventory.replica_store,
        "hostname": own.name,
        "gateway_address": region.gateway_address,
        "relay": region.relay,
        "relays": inventory.relays,
        "fabric_bytes_per_s": inventory.fabric_bytes_per_s or None,
        "fabric_latency_s": inventory.fabric_latency_s or None,
        "num_cores": inventory.num_cores,
        "memory_bytes": inventory.memory_bytes,
        "machines": [_machine_tree(each) for each in inventory.machines],
        "engines": [
            {"name": name, "version": version}
            for name, version in sorted({(each.name, each.version) for m in inventory.usable for each in m.engines})
        ],
        "profiles": [{**profile_summary(each), "profile": tree_of(each)} for each in inventory.profiles],
        "last_seen_s": round(region.last_seen_s, 3),
        "tasks": [
            {
                "task_id": task.task_id,
                "job_id": task.job_id,
                "state": task_state(task),
                "message": task.message,
                "restarts": task.restarts,
            }
            for task in region.tasks
        ],
    }


def describe_fabric(tree: Tree) -> str:
    """Return a line about the network between the machines of a region's tree; empty if nothing was measured."""
    if tree["fabric_bytes_per_s"] is None:
        return ""
    latency_ms = (tree["fabric_latency_s"] or 0.0) * 1e3
    return f"fabric  {units.size(tree['fabric_bytes_per_s'])}/s, {latency_ms:.2g} ms between its machines"


def profile_summary(profile: Profile) -> Tree:
    """Return what is told of a profile wherever profiles are listed."""
    spreads = [row.spread for row in profile.generation] + [row.spread for row in profile.training]
    return {
        "model": profile.model,
        "engine": profile.engine,
        "machine": profile.machine,
        "device": profile.device or "cores",
        "measured_at_s": profile.measured_at_s,
        "num_rows": len(spreads),
        "spread": max(spreads, default=0.0),
        "problem": profile.problem if not profile.is_complete else "",
    }


def _machine_tree(machine: Machine) -> Tree:
    return {
        "name": machine.name,
        "num_cores": machine.num_cores,
        "memory_bytes": machine.memory_bytes,
        "has_launcher": machine.has_launcher,
        "engines": [each.name for each in machine.engines],
        "devices": [{**asdict(device), "kind": device.kind.value} for device in machine.devices],
    }


def link_tree(link: control_pb2.Link) -> Tree:
    """Return a link as a tree; its measurements are None if it was never measured.

    Its state is `failed` if its last probe failed, `stale` if it is not measured any more since a region of it is
    disconnected, `ok`, or empty if it was never probed.
    """
    measured = link.throughput_bits_per_s > 0
    return {
        "src_region": link.src_region,
        "dst_region": link.dst_region,
        "rtt_s": link.rtt_s if measured else None,
        "throughput_bits_per_s": link.throughput_bits_per_s if measured else None,
        "measured_at_s": round(link.measured_at_s, 3) if measured else None,
        "state": "failed" if link.failure else "" if not measured else "stale" if link.is_stale else "ok",
        "failure": link.failure or None,
        "failed_since_s": round(link.failed_since_s, 3) if link.failure else None,
        "sent_bytes": link.sent_bytes,
    }


# ---- columns ---------------------------------------------------------------------------------------------------------


def _text(field: str) -> Callable[[Tree, float], str]:
    return lambda tree, now_s: str(tree[field])


def _age(field: str) -> Callable[[Tree, float], str]:
    return lambda tree, now_s: "" if tree[field] is None else units.duration(max(0.0, now_s - tree[field]))


def _size(field: str) -> Callable[[Tree, float], str]:
    return lambda tree, now_s: units.size(tree[field])


def _policy(tree: Tree, now_s: float) -> str:
    policy: Mapping[str, int] | None = tree["policy"]
    return str(Policy(**policy)) if policy else ""


def _figure(field: str) -> Callable[[Tree, float], str]:
    def shown(tree: Tree, now_s: float) -> str:
        return figure(tree[field], tree["unit"])

    return shown


def _share(field: str) -> Callable[[Tree, float], str]:
    return lambda tree, now_s: "" if tree.get(field) is None else f"{tree[field]:.0%}"


def _difference(tree: Tree, now_s: float) -> str:
    return "" if tree["difference"] is None else f"{tree['difference']:+.0%}"


def _rtt(tree: Tree, now_s: float) -> str:
    return "" if tree["rtt_s"] is None else f"{tree['rtt_s'] * 1e3:.1f} ms"


def _link_state(tree: Tree, now_s: float) -> str:
    if tree["failure"] is None:
        return str(tree["state"])
    return f"failed: {tree['failure']} (for {_age('failed_since_s')(tree, now_s)})"


def _throughput(tree: Tree, now_s: float) -> str:
    return units.quantity(tree["throughput_bits_per_s"], "bit/s")


def _accelerators(tree: Tree, now_s: float) -> str:
    return _models(device for machine in tree["machines"] for device in machine["devices"])


def _models(devices: Iterable[Tree]) -> str:
    models = Counter(
        device["model"] + _emulated(device) + (" (broken)" if device["problem"] else "")
        for device in devices
        if device["kind"] != DeviceFamily.CPU
    )
    return ", ".join(f"{number} x {model}" for model, number in sorted(models.items()))


def _emulated(device: Tree) -> str:
    is_emulated = device["kind"] == DeviceFamily.EMULATED
    return f" (emulated, {device['slowdown']:g} times slower)" if is_emulated else ""


def _task(tree: Tree, now_s: float) -> str:
    return str(tree["task_id"]).rpartition("/")[2]


def _device(tree: Tree, now_s: float) -> str:
    return device_words(tree["device"])


def _devices(tree: Tree, now_s: float) -> str:
    # Those of a trainer's further machines follow, each after its machine's name.
    others = [f"{each['machine']}:{','.join(map(str, each['devices']))}" for each in tree["others"]]
    return " ".join([",".join(map(str, tree["devices"])), *others])


def _number(field: str) -> Callable[[Tree, float], str]:
    return lambda tree, now_s: str(tree[field] or "")


def _rent(tree: Tree, now_s: float) -> str:
    return "" if tree["usd_per_hour"] is None else f"{tree['usd_per_hour']:,.2f}"


def _relay(tree: Tree, now_s: float) -> str:
    if tree["gateway_address"]:
        return "relays" if tree["relays"] else ""
    return f"via {tree['relay']}" if tree["relay"] else "none to reach it"


def _tasks(tree: Tree, now_s: float) -> str:
    running = [task for task in tree["tasks"] if task["state"] in ("starting", "running")]
    return str(len(running))


JOBS = Listing(
    key="jobs",
    name=("job_id",),
    columns=(
        Column("JOB", _text("job_id")),
        Column("NAME", _text("name"), wide=True),
        Column("STATE", _text("state")),
        Column("POLICY", _policy, right=True),
        Column("AGE", _age("submitted_at_s"), right=True),
        Column("WAN", _size("wan_bytes"), right=True, wide=True),
        Column("REASON", _text("reason")),
    ),
    empty="no jobs yet; `periplus job submit FILE` starts one",
)
REGIONS = Listing(
    key="regions",
    name=("name",),
    columns=(
        Column("REGION", _text("name")),
        Column("STATE", _text("state")),
        Column("MODE", _text("mode")),
        Column("CORES", _text("num_cores"), right=True),
        Column("MEMORY", _size("memory_bytes"), right=True),
        Column("ACCELERATORS", _accelerators),
        Column("TASKS", _tasks, right=True),
        Column("SEEN", _age("last_seen_s"), right=True),
        Column("HOST", _text("hostname"), wide=True),
        Column("RELAY", _relay, optional=True),
        Column("GATEWAY", _text("gateway_address"), wide=True),
    ),
    empty="no region has joined; `periplus agent --region NAME` serves one",
)
MACHINES = Listing(
    key="machines",
    name=("name",),
    columns=(
        Column("MACHINE", _text("name")),
        Column("CORES", _text("num_cores"), right=True),
        Column("MEMORY", _size("memory_bytes"), right=True),
        Column("ACCELERATORS", lambda tree, now_s: _models(tree["devices"]), optional=True),
        Column("ENGINES", lambda tree, now_s: ", ".join(tree["engines"])),
        Column("JOBS", lambda tree, now_s: "yes" if tree["has_launcher"] else "nothing can be started there"),
    ),
    empty="no machine is there",
)
PROCESSES = Listing(
    key="processes",
    name=("task_id",),
    columns=(
        Column("TASK", _task),
        Column("REGION", _text("region")),
        Column("MACHINE", _text("machine"), optional=True),
        Column("DEVICE", _device),
        Column("DEVICES", _devices, optional=True),
        Column("ENGINE", _text("engine"), optional=True),
        Column("TENSOR", _number("tensor"), right=True, optional=True),
        Column("DATA", _number("data"), right=True, optional=True),
        Column("$/H", _rent, right=True, optional=True),
        Column("STATE", _text("state")),
    ),
    empty="no process is placed yet",
)
TERMS = Listing(
    key="terms",
    name=("name",),
    columns=(
        Column("TERM", _text("name")),
        Column("PREDICTED", _figure("predicted"), right=True),
        Column("SIMULATED", _figure("simulated"), right=True, optional=True),
        Column("MEASURED", _figure("measured"), right=True),
        Column("DIFFERENCE", _difference, right=True, optional=True),
    ),
    empty="no step was measured yet",
)
PROFILES = Listing(
    key="profiles",
    name=("model",),
    columns=(
        Column("REGION", lambda tree, now_s: str(tree.get("region", "")), optional=True),
        Column("MODEL", _text("model")),
        Column("ENGINE", _text("engine")),
        Column("MACHINE", _text("machine"), wide=True),
        Column("DEVICE", _text("device")),
        Column("ROWS", _text("num_rows"), right=True),
        Column("SPREAD", _share("spread"), right=True),
        Column("ERROR BEFORE", _share("error_before"), right=True, optional=True),
        Column("AFTER", _share("error_after"), right=True, optional=True),
        Column("MEASURED", _age("measured_at_s"), right=True),
        Column("PROBLEM", _text("problem"), optional=True),
    ),
    empty="no model was measured here; `periplus profile JOB` does it",
)
LINKS = Listing(
    key="links",
    name=("src_region", "dst_region"),
    columns=(
        Column("FROM", _text("src_region")),
        Column("TO", _text("dst_region")),
        Column("RTT", _rtt, right=True),
        Column("THROUGHPUT", _throughput, right=True),
        Column("SENT", _size("sent_bytes"), right=True),
        Column("MEASURED", _age("measured_at_s"), right=True),
        Column("STATE", _link_state),
    ),
    empty="no link was probed yet; at least two regions must join",
)
TASKS = Listing(
    key="tasks",
    name=("task_id",),
    columns=(
        Column("TASK", _text("task_id")),
        Column("STATE", _text("state")),
        Column("RESTARTS", _text("restarts"), right=True),
        Column("MESSAGE", _text("message")),
    ),
    empty="no task runs in this region",
)


def describe_job(job: control_pb2.Job, now_s: float, *, is_gone: bool = False) -> str:
    """Return the lines that describe a job to a person, without its job file and plan.

    `is_gone` says that somebody has removed its run directory.
    """
    tree = job_details(job)
    found = (*_job_lines(tree, now_s), *_file_lines(tree, is_gone))
    lines = [(heading, printable(value)) for heading, value in found if value]
    width = max(len(heading) for heading, _ in lines)
    facts = "\n".join(f"{heading.ljust(width)}  {value}" for heading, value in lines)
    processes = render(PROCESSES, tree["processes"], Output.TABLE, now_s)
    terms = render(TERMS, tree["terms"], Output.TABLE, now_s)
    return "\n\n".join(filter(None, (facts, processes, terms, tree["largest_difference"])))


def describe_files(job: control_pb2.Job, *, is_gone: bool = False) -> list[str]:
    """Return a line for each path and command that a job's run has; no line if no process of it ever ran.

    `is_gone` says that somebody has removed its run directory.
    """
    lines = [(heading, printable(value)) for heading, value in _file_lines(job_tree(job), is_gone) if value]
    return [f"{heading}: {value}" for heading, value in lines]


def _file_lines(tree: Tree, is_gone: bool) -> list[tuple[str, str]]:
    files = tree["files"]
    if files is None:
        return []
    if is_gone:
        return [("run directory", f"{files['run_dir']} is gone, with its report, logs and checkpoints")]
    checkpoint = str(Policy(**files["checkpoint"])) if files["checkpoint"] else ""
    # The report is written last, by the agent: a job may have ended before its report is known.
    done, ended = tree["state"] == JobState.SUCCEEDED, tree["state"] in ENDED_STATES
    later = (
        f"none yet, the trainer may still be ending; `periplus job report {shlex.quote(files['run_dir'])}` writes one"
    )
    return [
        ("run directory", files["run_dir"]),
        ("report", files["report"] or (later if ended else "")),
        ("model", f"{files['run_dir']}/final" if done else ""),
        ("checkpoint", checkpoint),
        ("resume", resume_command(files["run_dir"]) if checkpoint and not done else ""),
    ]


def _job_lines(tree: Tree, now_s: float) -> list[tuple[str, str]]:
    plan = tree["plan"] or {}
    return [
        ("job", tree["job_id"]),
        ("state", tree["state"]),
        ("reason", tree["reason"]),
        ("doing", tree["doing"]),
        ("notice", tree["notice"]),
        ("policy", _policy(tree, now_s)),
        ("submitted", f"{_age('submitted_at_s')(tree, now_s)} ago"),
        ("WAN", f"{units.size(tree['wan_bytes'])} between regions, counted by the {tree['wan_bytes_from']}"),
        ("replica", tree["replica"]),
        ("binding", plan.get("binding", "")),
        *(("figures", sentence) for sentence in plan.get("figures", ())),
    ]
