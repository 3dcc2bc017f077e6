"""The command line of `periplus up`: it names the regions and the directory of a local fleet, and runs it."""

import asyncio
import os
import re
import socket
from pathlib import Path

import click

from coordinator.local_fleet.directory import FOLDER
from coordinator.local_fleet.fleet import LocalFleetSettings
from coordinator.local_fleet.records import identity_folder, records_folder, token_file
from coordinator.local_fleet.up import UpSettings, run_up
from periplus import clock
from periplus.cli.option_types import DirectoryToWrite
from periplus.config.local_paths import home_folder
from periplus.errors import ConfigError
from periplus.values.task import REGION_NAME
from periplus.view.terminal.listing import Output, output_option
from periplus.wan import grid

DEFAULT_REGION = "local"
"""Name of the only region, and beginning of the names of several, when the fleet emulates no network."""

MAX_REGIONS = 64
"""Most regions of a local fleet. Each is a process, and each pair is measured before the fleet is ready. Chosen by
hand."""


@click.command("up")
@click.option(
    "--regions",
    default="",
    metavar="N|A,B,C",
    help="Number of regions, or their names  [default: 1, or the grid's three]",
)
@click.option(
    "--grid",
    "wan",
    default="",
    metavar="|".join((*grid.PRESETS, "FILE")),
    help="Emulate the network between the regions: a preset, or a grid file  [default: none]",
)
@click.option(
    "--dir",
    "directory",
    type=DirectoryToWrite(),
    default=Path(),
    show_default=True,
    help="Directory to which each job's output.dir is relative.",
)
@click.option(
    "--allow-dir",
    "allow_dirs",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Another directory below which runs may lie, beside --dir and your home; repeatable.",
)
@click.option("--worker-threads", type=click.IntRange(min=1), help="Compute threads of each rollout worker.")
@click.option("--trainer-threads", type=click.IntRange(min=1), help="Compute threads of each trainer.")
@click.option(
    "--jobs-per-region",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Jobs that may share a group of cores. Accelerators are never shared.",
)
@click.option("--stop-on-stdin-eof", is_flag=True, help="Stop when standard input closes, as when the parent ends.")
@output_option(Output.TABLE, Output.JSON)
def up_command(
    regions: str,
    wan: str,
    directory: Path,
    allow_dirs: tuple[Path, ...],
    worker_threads: int | None,
    trainer_threads: int | None,
    jobs_per_region: int,
    stop_on_stdin_eof: bool,
    output: str,
) -> int:
    """Run a fleet on this machine, a coordinator and an agent for each region, until interrupted.

    `periplus job` and the other commands that ask a coordinator then find it without an address, and so does
    periplus.connect() in Python. With -o json one object is printed once the fleet serves.
    """
    threads = {"--worker-threads": worker_threads, "--trainer-threads": trainer_threads}
    options = tuple(word for name, num in threads.items() if num is not None for word in (name, str(num)))
    records, work_dir = records_folder(os.environ, home_folder()), directory.resolve()
    fleet = LocalFleetSettings(
        regions=emulated_regions(regions, wan) if wan else plain_regions(regions),
        wan=wan,
        work_dir=work_dir,
        token_file=token_file(work_dir, records),
        state_dir=work_dir / FOLDER / "coordinator",
        identity=identity_folder(work_dir, records),
        allow_dirs=(home_folder(), *allow_dirs),
        agent_options=options,
        jobs_per_region=jobs_per_region,
    )
    settings = UpSettings(
        fleet=fleet,
        records=records,
        hostname=socket.gethostname(),
        as_json=Output(output) is Output.JSON,
        stop_on_stdin_eof=stop_on_stdin_eof,
        launched_s=clock.monotonic_s(),
    )
    return asyncio.run(run_up(settings))


def plain_regions(text: str) -> tuple[str, ...]:
    """Return the regions of a fleet without an emulated network, for their number or names; one if the text is empty.

    Raises: ConfigError for a number out of range and for a name that no region can have or that is given twice.
    """
    if not text:
        return (DEFAULT_REGION,)
    if text.isdecimal():
        num = _checked_number(int(text), MAX_REGIONS)
        return tuple(f"{DEFAULT_REGION}-{i}" for i in range(1, num + 1)) if num > 1 else (DEFAULT_REGION,)
    names = _names(text)
    for name in names:
        if not re.fullmatch(REGION_NAME, name):
            raise ConfigError(
                f"--regions: {name!r} is not usable; use up to 63 letters, digits and : . _ - that begin with a letter "
                "or digit"
            )
    return grid.unlimited(names).regions


def emulated_regions(text: str, wan: str) -> tuple[str, ...]:
    """Return the regions of a fleet over a grid, for their number or names; the grid's usual ones if the text is empty.

    Raises: ConfigError if the grid cannot be read or lacks a region or a pair.
    """
    if text and not text.isdecimal():
        return grid.load(wan, _names(text)).regions
    known = grid.load(wan, ()).regions
    usual = grid.DEFAULT_REGIONS.get(wan, known[:3])
    if not text:
        return usual
    others = tuple(name for name in known if name not in usual)
    num = _checked_number(int(text), len(usual) + len(others))
    return grid.load(wan, (*usual, *others)[:num]).regions


def _checked_number(num: int, most: int) -> int:
    if not 1 <= num <= most:
        raise ConfigError(f"--regions is {num}, but must be from 1 to {most}")
    return num


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ConfigError(f"--regions {text!r} names no region; give a number, or names such as A,B,C")
    return names
