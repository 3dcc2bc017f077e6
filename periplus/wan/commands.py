"""Commands `periplus wan run | set | show`: start the WAN emulator, change one of its links, and show all links."""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from periplus import errors
from periplus.cli.command_groups import CommandGroup
from periplus.cli.option_types import DIALLED, HOST_PORT
from periplus.net.tokens import FILE_VARIABLE, token_of_environment
from periplus.process import lifecycle
from periplus.view.terminal.listing import Column, Listing, Output, Tree, output_option, render, render_tree
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
T = TypeVar("T")

DEFAULT_CONTROL = "127.0.0.1:7071"
"""Default control address. `wan run`, `set` and `show` share it; its port is next to the coordinator's default."""

_control_option = click.option(
    "--control",
    metavar="HOST:PORT",
    type=DIALLED,
    envvar="PERIPLUS_WAN",
    show_envvar=True,
    default=DEFAULT_CONTROL,
    show_default=True,
    help="The emulator's control address.",
)


def parse_value(property_: LinkProperty, text: str) -> float:
    """Return the number that a text such as `100mbit`, `80ms` or `on` stands for, in bits per second or seconds.

    Raises: ValueError with an example of an accepted text.
    """
    word = text.strip().lower()
    if property_ is LinkProperty.DROP and word in ("on", "off"):
        return float(word == "on")
    if property_ is LinkProperty.RATE and word == "unlimited":
        return math.inf
    # A number and its unit, as in `100mbit` or `100 mbit/s`.
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)(?:/s)?", word)
    unit = _UNITS.get(property_, {}).get(match[2]) if match else None
    if match is None or unit is None or (property_ is LinkProperty.RATE and float(match[1]) == 0):
        raise ValueError(f"{text!r} is no value for {property_.value}; write {_EXAMPLE[property_]}")
    return float(match[1]) * unit


@click.group(cls=CommandGroup)
def wan() -> None:
    """Emulate the wide-area network between regions on this machine."""


@wan.command()
@click.option(
    "--grid", "grid_", metavar="|".join((*grid.PRESETS, "FILE")), required=True, help="Measured pairs: preset or CSV."
)
@click.option(
    "--control",
    metavar="HOST:PORT",
    type=HOST_PORT,
    default=DEFAULT_CONTROL,
    show_default=True,
    help="Address on which its control listens; port 0 takes a free one.",
)
@click.option("--regions", metavar="A,B,C", default="", help="Regions in use; all regions of the grid by default.")
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help='Gets {"control": "host:port"} once it listens.',
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=FILE_VARIABLE,
    show_envvar=True,
    help="File with the token that calls of its control need  [default: none needed]",
)
@click.option(
    "--stop-on-stdin-eof", is_flag=True, help="Also stop when stdin closes, as it does when the parent process ends."
)
def run(
    grid_: str,
    control: str,
    regions: str,
    ready_file: Path | None,
    token_file: Path | None,
    stop_on_stdin_eof: bool,
) -> int:
    """Relay TCP between regions at the rates and delays of a grid, until stopped."""
    network = grid.load(grid_, tuple(name.strip() for name in regions.split(",") if name.strip()))
    click.echo(_describe(grid_, network), err=True)

    def ready(bound: str) -> None:
        if ready_file is not None:
            lifecycle.write_ready_file(ready_file, {"control": bound})
        click.echo(f"control {bound}", err=True)

    # The usual event loop wakes up to a millisecond late, which is too coarse for short delays.
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        reason = runner.run(
            app.run(network, control, stop_on_stdin_eof=stop_on_stdin_eof, on_ready=ready, token_file=token_file)
        )
    return errors.EXIT_INTERRUPTED if reason is lifecycle.ShutdownReason.SIGINT else errors.EXIT_OK


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

    _ask(control, lambda emulator: emulator.set_link(src, dst, property_value, number))


@wan.command()
@_control_option
@output_option()
def show(control: str, output: str) -> None:
    """Show every directed link: setting, bytes delivered, bytes on the way."""
    links, factor = _ask(control, lambda emulator: emulator.counters_and_factor())
    trees, form = [_as_json(link) for link in links], Output(output)
    if form in (Output.JSON, Output.YAML):
        click.echo(render_tree({"schema": "periplus.wan/1", "scale": factor, "links": trees}, form))
    elif trees:
        click.echo(render(_LINKS, trees, form, 0.0))
    else:
        click.echo(_LINKS.empty, err=True)


def _ask(control: str, call: Callable[[WanControl], Awaitable[T]]) -> T:
    async def connected() -> T:
        async with WanControl(control, token_of_environment()) as emulator:
            return await call(emulator)

    try:
        return asyncio.run(connected())
    except errors.Unreachable as error:
        raise errors.Unreachable(
            f"no emulator answers at {control}; start one with `periplus wan run`, or name another with --control or "
            "PERIPLUS_WAN"
        ) from error


def _describe(name: str, network: grid.EmulatedNetwork) -> str:
    total_gbit_per_s = sum(spec.rate_bits_per_s for spec in network.links.values()) / 1e9
    rates = "unlimited" if total_gbit_per_s == math.inf else f"sum {total_gbit_per_s:.3f} Gbit/s"
    return (
        f"wan {name}: {', '.join(network.regions)}; {len(network.links)} links, {rates}, "
        f"rates scaled by {network.factor:.6g}"
    )


def _as_json(link: LinkCount) -> Tree:
    return {
        "src_region": link.src_region,
        "dst_region": link.dst_region,
        "delivered_bytes": link.delivered_bytes,
        "queued_bytes": link.queued_bytes,
        "rate_bits_per_s": None if link.rate_bits_per_s == math.inf else link.rate_bits_per_s,
        "rtt_s": link.rtt_s,
        "dropped": link.dropped,
    }


def _rate(tree: Tree, now_s: float) -> str:
    rate = tree["rate_bits_per_s"]
    return "unlimited" if rate is None else f"{rate / 1e6:.1f} Mbit/s"


def _megabytes(field: str) -> Callable[[Tree, float], str]:
    return lambda tree, now_s: f"{tree[field] / 1e6:.3f} MB"


_LINKS = Listing(
    key="links",
    name=("src_region", "dst_region"),
    columns=(
        Column("FROM", lambda tree, now_s: str(tree["src_region"])),
        Column("TO", lambda tree, now_s: str(tree["dst_region"])),
        Column("RATE", _rate, right=True),
        Column("RTT", lambda tree, now_s: f"{tree['rtt_s'] * 1e3:.1f} ms", right=True),
        Column("DELIVERED", _megabytes("delivered_bytes"), right=True),
        Column("QUEUED", _megabytes("queued_bytes"), right=True),
        Column("BYTES", lambda tree, now_s: f"{tree['delivered_bytes']:,}", wide=True, right=True),
        Column("STATE", lambda tree, now_s: "dropped" if tree["dropped"] else "up"),
    ),
    empty="the emulator has no links; it takes two regions",
)
