"""Values of the control plane as trees for programs, and as aligned columns for people. Pure: time comes in.

A tree holds JSON values under the protocol's names; `json` and `yaml` print it whole, a table shows some of it, `wide`
more of it, `name` the names alone. Text from elsewhere is freed of control characters before it meets a terminal.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from coordinator.client.connection import job_state, task_state
from periplus.pb.v1 import control_pb2
from periplus.policy import Policy
from periplus.view import units
from periplus.view.state import printable
from periplus.view.summary import WanCounter
from periplus.yaml_text import dump

Tree = dict[str, Any]


class Output(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Column:
    heading: str
    cell: Callable[[Tree, float], str]
    wide: bool = False
    right: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """`key` is the plural under which a program finds the trees; `name` is a tree's field, or a pair's two."""

    key: str
    name: tuple[str, ...]
    columns: tuple[Column, ...]
    empty: str


def render(listing: Listing, trees: Sequence[Tree], output: Output, now_s: float) -> str:
    """The text for standard output, empty when a person has nothing to see."""
    match output:
        case Output.JSON | Output.YAML:
            return render_tree({"schema": f"periplus.{listing.key}/1", listing.key: list(trees)}, output)
        case Output.NAME:
            return "\n".join(" ".join(str(tree[field]) for field in listing.name) for tree in trees)
    columns = [column for column in listing.columns if output is Output.WIDE or not column.wide]
    return columns_of(columns, trees, now_s) if trees else ""


def render_tree(tree: Tree, output: Output) -> str:
    """One tree for a program."""
    return json.dumps(tree, indent=2) if output is Output.JSON else dump(tree).rstrip("\n")


def columns_of(columns: Sequence[Column], trees: Sequence[Tree], now_s: float) -> str:
    """Aligned text; the last column may be long, and is not cut."""
    rows = [[column.heading for column in columns]]
    rows += [[printable(column.cell(tree, now_s)) or "-" for column in columns] for tree in trees]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    lines = (
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in rows
    )
    return "\n".join(lines)


# ---- trees -----------------------------------------------------------------------------------------------------------


def job_tree(job: control_pb2.Job) -> Tree:
    """Without its file and plan; see job_details."""
    policy = {"fork": job.policy.fork, "version": job.policy.version} if job.HasField("policy") else None
    return {
        "job_id": job.job_id,
        "name": job.name,
        "state": job_state(job),
        "reason": job.reason,
        "policy": policy,
        "submitted_at_s": round(job.submitted_at_s, 3),
        "wan_bytes": sum(pair.sent_bytes for pair in job.traffic),
        "wan_bytes_from": WanCounter.GATEWAYS.value,
    }


def job_details(job: control_pb2.Job) -> Tree:
    """With the bytes between each two regions, the resolved job and the plan, null before there is one."""
    plan = json.loads(job.plan_json) if job.plan_json else None
    return {
        "schema": "periplus.job-status/1",
        **job_tree(job),
        "traffic": [
            {"src_region": pair.src_region, "dst_region": pair.dst_region, "sent_bytes": pair.sent_bytes}
            for pair in job.traffic
        ],
        "plan": plan,
        "job": json.loads(job.job_json) if job.job_json else None,
    }


def region_tree(region: control_pb2.Region) -> Tree:
    return {
        "name": region.name,
        "state": region.state,
        "hostname": region.inventory.hostname,
        "gateway_address": region.gateway_address,
        "num_cores": region.inventory.num_cores,
        "memory_bytes": region.inventory.memory_bytes,
        "accelerators": [
            {"name": each.name, "memory_bytes": each.memory_bytes, "num": each.num}
            for each in region.inventory.accelerators
        ],
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


def link_tree(link: control_pb2.Link) -> Tree:
    """What was not measured is null."""
    measured = link.throughput_bits_per_s > 0
    return {
        "src_region": link.src_region,
        "dst_region": link.dst_region,
        "rtt_s": link.rtt_s if measured else None,
        "throughput_bits_per_s": link.throughput_bits_per_s if measured else None,
        "measured_at_s": round(link.measured_at_s, 3) if measured else None,
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


def _rtt(tree: Tree, now_s: float) -> str:
    return "" if tree["rtt_s"] is None else f"{tree['rtt_s'] * 1e3:.1f} ms"


def _throughput(tree: Tree, now_s: float) -> str:
    return units.quantity(tree["throughput_bits_per_s"], "bit/s")


def _accelerators(tree: Tree, now_s: float) -> str:
    return ", ".join(f"{each['num']} x {each['name']}" for each in tree["accelerators"])


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
        Column("CORES", _text("num_cores"), right=True),
        Column("MEMORY", _size("memory_bytes"), right=True),
        Column("ACCELERATORS", _accelerators),
        Column("TASKS", _tasks, right=True),
        Column("SEEN", _age("last_seen_s"), right=True),
        Column("HOST", _text("hostname"), wide=True),
        Column("GATEWAY", _text("gateway_address"), wide=True),
    ),
    empty="no region has joined; `periplus agent --region NAME` serves one",
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
    ),
    empty="no link was measured yet; it takes two regions",
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
    empty="nothing runs there",
)


def describe_job(job: control_pb2.Job, now_s: float) -> str:
    """A job for a person, without its file: `-o yaml` has that."""
    tree = job_details(job)
    lines = [(heading, printable(value)) for heading, value in _job_lines(tree, now_s) if value]
    width = max(len(heading) for heading, _ in lines)
    return "\n".join(f"{heading.ljust(width)}  {value}" for heading, value in lines)


def _job_lines(tree: Tree, now_s: float) -> list[tuple[str, str]]:
    plan = tree["plan"] or {"assignments": [], "binding": ""}
    placed = ", ".join(f"{a['num_workers']} {a['task']} in {a['region']}" for a in plan["assignments"])
    return [
        ("job", tree["job_id"]),
        ("state", tree["state"]),
        ("reason", tree["reason"]),
        ("policy", _policy(tree, now_s)),
        ("submitted", f"{_age('submitted_at_s')(tree, now_s)} ago"),
        ("placed", placed),
        ("WAN", f"{units.size(tree['wan_bytes'])} between regions, counted by the {tree['wan_bytes_from']}"),
        ("binding", plan["binding"]),
    ]
