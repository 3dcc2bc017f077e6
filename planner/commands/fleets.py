"""`periplus fleet show|schema`: print fleet files and their schema.

`periplus region export` makes a fleet file of what agents have measured.
"""

from pathlib import Path
from typing import Any

import click

from periplus.cli.command_groups import CommandGroup
from periplus.view import units
from planner.commands.output import form_option, show
from planner.explain.columns import columns
from planner.files.fleet_file import fleet_schema, to_tree
from planner.files.loaders import load_fleet
from planner.problem.device_classes import classes_of
from planner.problem.fleet import Fleet, Link

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(cls=CommandGroup)
def fleet() -> None:
    """Fleet files: regions, their machines, the links between them, and prices."""


@fleet.command("show")
@click.argument("file", type=_FILE, metavar="FLEET")
@form_option
def show_fleet(file: Path, form: str) -> None:
    """Print the machines of a fleet and a matrix of its links."""
    shown = load_fleet(file)
    show(to_tree(shown), form, lambda: fleet_text(shown))


@fleet.command("schema")
def schema_command() -> None:
    """Print the JSON schema of fleet files, for editors."""
    show(fleet_schema(), "json", str)


def fleet_text(shown: Fleet) -> str:
    """Return a table of a fleet's machines and two matrices of its links: throughput and round-trip time."""
    rows = []
    for at in classes_of(shown):
        price = units.UNKNOWN if at.usd_per_gpu_hour is None else f"{at.usd_per_gpu_hour:.2f}"
        rate = units.quantity(at.fabric_bytes_per_s * 8, "bit/s")
        spot = "spot" if at.is_spot else ""
        row = (at.region.name, at.gpu.name, f"{at.num_machines:,} x {at.gpus_per_machine}", spot, price, rate)
        rows.append((*row, "" if at.region.is_public else "outbound only"))
    heading = ("REGION", "GPU", "MACHINES", "", "DOLLARS/GPU/H", "FABRIC", "")
    total = f"{len(shown.regions)} regions, {shown.num_gpus:,} devices, {len(shown.links)} links"
    return "\n\n".join(block for block in (columns(heading, rows, right=(2, 4, 5)), *_matrices(shown), total) if block)


def _matrices(shown: Fleet) -> list[str]:
    names = sorted(region.name for region in shown.regions)
    if not shown.links:
        return ["no link was measured"] if len(names) > 1 else []
    links = {(link.src_region, link.dst_region): link for link in shown.links}

    def matrix(title: str, cell: Any) -> str:
        rows = [
            (src, *("" if src == dst else cell(links[src, dst]) if (src, dst) in links else "-" for dst in names))
            for src in names
        ]
        # Columns have numbers, which the row names repeat: names of regions are too long for columns.
        heads = ["", *(f"[{i}]" for i in range(len(names)))]
        named = [(f"[{i}] {row[0]}", *row[1:]) for i, row in enumerate(rows)]
        return f"{title}\n{columns(heads, named, right=range(1, len(heads)))}"

    return [
        matrix("Mbit/s from row to column, tenth percentile", lambda link: units.mbit(link.bytes_per_s * 8)),
        matrix("round trip in ms", _rtt),
    ]


def _rtt(link: Link) -> str:
    return f"{link.rtt_s * 1e3:.0f}"
