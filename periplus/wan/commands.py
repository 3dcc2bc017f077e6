"""`periplus wan run | set | show`: the emulator and its control from a shell."""

import asyncio
import math
import re
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from periplus import errors, finite_json, process
from periplus.wan import app, grid
from periplus.wan.client import LinkCount, LinkProperty, WanControl
from periplus.wan.relay import new_event_loop

_UNITS = {
    LinkProperty.RATE: {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9},
    LinkProperty.RTT: {"us": 1e-6, "ms": 1e-3, "s": 1.0},
}
_EXAMPLE = {
    LinkProperty.RATE: "100mbit, 1.5gbit, or unlimited",
    LinkProperty.RTT: "80ms or 0.08s",
    LinkProperty.DROP: "on or off",
}
_control_option = click.option("--control", metavar="HOST:PORT", required=True, help="The emulator's control address.")


def parse_value(property_: LinkProperty, text: str) -> float:
    """The number behind a human's `100mbit`, `80ms` or `on`.

    Raises: ValueError saying what would do.
    """
    word = text.strip().lower()
    if property_ is LinkProperty.DROP and word in ("on", "off"):
        return float(word == "on")
    if property_ is LinkProperty.RATE and word == "unlimited":
        return math.inf
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)(?:/s)?", word)
    unit = _UNITS.get(property_, {}).get(match[2]) if match else None
    if match is None or unit is None or (property_ is LinkProperty.RATE and float(match[1]) == 0):
        raise ValueError(f"{text!r} is no value for {property_.value}; write {_EXAMPLE[property_]}")
    return float(match[1]) * unit


@click.group()
def wan() -> None:
    """Emulate the wide-area network between regions on this machine."""


@wan.command()
@click.option(
    "--grid", "grid_", metavar="|".join((*grid.PRESETS, "FILE")), required=True, help="Measured pairs: preset or CSV."
)
@click.option("--control", metavar="HOST:PORT", default="127.0.0.1:0", show_default=True, help="Port 0: a free one.")
@click.option("--regions", metavar="A,B,C", default="", help="Regions in use; the grid's own by default.")
@click.option("--ready-file", type=click.Path(dir_okay=False, path_type=Path), help='Gets {"control": "host:port"}.')
@click.option("--stop-on-stdin-eof", is_flag=True, help="Also stop when stdin closes: when the parent has gone.")
def run(grid_: str, control: str, regions: str, ready_file: Path | None, stop_on_stdin_eof: bool) -> int:
    """Relay TCP between regions at the rates and delays of a grid, until stopped."""
    network = grid.load(grid_, tuple(name.strip() for name in regions.split(",") if name.strip()))
    click.echo(_describe(grid_, network), err=True)

    def ready(bound: str) -> None:
        if ready_file is not None:
            process.write_ready_file(ready_file, {"control": bound})
        click.echo(f"control {bound}", err=True)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        reason = runner.run(app.run(network, control, stop_on_stdin_eof=stop_on_stdin_eof, on_ready=ready))
    return errors.EXIT_INTERRUPTED if reason is process.StopReason.SIGINT else errors.EXIT_OK


@wan.command("set")
@click.argument("src")
@click.argument("dst")
@click.argument("property_", metavar="rate|rtt|drop", type=click.Choice([p.value for p in LinkProperty]))
@click.argument("value")
@_control_option
def set_(src: str, dst: str, property_: str, value: str, control: str) -> None:
    """Set rate (100mbit, unlimited), rtt (80ms) or drop (on, off) of the link from SRC to DST."""
    property_value = LinkProperty(property_)
    try:
        number = parse_value(property_value, value)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="VALUE") from error

    async def call() -> None:
        async with WanControl(control) as emulator:
            await emulator.set_link(src, dst, property_value, number)

    asyncio.run(call())


@wan.command()
@_control_option
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def show(control: str, output: str) -> None:
    """Show every directed link: setting, bytes delivered, bytes on the way."""

    async def call() -> tuple[tuple[LinkCount, ...], float]:
        async with WanControl(control) as emulator:
            return await emulator.counters_and_factor()

    links, factor = asyncio.run(call())
    if output == "json":
        click.echo(finite_json.dumps({"scale": factor, "links": [_as_json(link) for link in links]}, indent=2))
    else:
        Console().print(_as_table(links))


def _describe(name: str, network: grid.Network) -> str:
    total_gbit_per_s = sum(spec.rate_bits_per_s for spec in network.links.values()) / 1e9
    rates = "unlimited" if total_gbit_per_s == math.inf else f"sum {total_gbit_per_s:.3f} Gbit/s"
    return (
        f"wan {name}: {', '.join(network.regions)}; {len(network.links)} links, {rates}, "
        f"rates scaled by {network.factor:.6g}"
    )


def _as_json(link: LinkCount) -> dict[str, object]:
    return {
        "src_region": link.src_region,
        "dst_region": link.dst_region,
        "delivered_bytes": link.delivered_bytes,
        "queued_bytes": link.queued_bytes,
        "rate_bits_per_s": None if link.rate_bits_per_s == math.inf else link.rate_bits_per_s,
        "rtt_s": link.rtt_s,
        "dropped": link.dropped,
    }


def _as_table(links: Sequence[LinkCount]) -> Table:
    table = Table(box=None)
    longest = max((len(link.src_region) for link in links), default=0)
    for heading in ("FROM", "TO"):
        table.add_column(heading, min_width=longest)  # rich would cut names to an ellipsis
    for heading in ("RATE", "RTT", "DELIVERED", "QUEUED"):
        table.add_column(heading, justify="right")
    table.add_column("STATE")
    for link in links:
        rate = "unlimited" if link.rate_bits_per_s == math.inf else f"{link.rate_bits_per_s / 1e6:.1f} Mbit/s"
        table.add_row(
            link.src_region,
            link.dst_region,
            rate,
            f"{link.rtt_s * 1e3:.1f} ms",
            f"{link.delivered_bytes / 1e6:.3f} MB",
            f"{link.queued_bytes / 1e6:.3f} MB",
            "dropped" if link.dropped else "up",
        )
    return table
