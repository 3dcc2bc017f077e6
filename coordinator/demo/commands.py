"""The command line of `periplus demo`: it builds the job and the settings of a demo, and runs it."""

import asyncio
import sys
import uuid
from pathlib import Path

import click

from coordinator.client.preflight import check_job
from coordinator.client.resuming import job_to_submit
from coordinator.demo.job import example_file
from coordinator.demo.run import DemoSettings, run_demo
from periplus import clock
from periplus.cli.option_types import DirectoryToWrite
from periplus.errors import ConfigError
from periplus.job.resumption import in_directory_of
from periplus.view.terminal.visible import say
from periplus.wan import grid

VLLM_MODEL = "builtin:qwen3-tiny-h32"
"""The demo's model with vLLM, whose attention on a CPU does not take the heads of the usual one."""


@click.command()
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--wan",
    default="intercontinental",
    show_default=True,
    metavar="|".join((*grid.PRESETS, "FILE")),
    help="The emulated network: a preset, or a grid file.",
)
@click.option("--regions", default="", metavar="A,B,C", help="Regions of the grid to use  [default: the grid's three]")
@click.option(
    "--job",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Job file  [default: examples/spelling.yaml]",
)
@click.option("--steps", type=int, default=None, help="Training steps.")
@click.option("--staleness", type=int, default=None, help="Bound on staleness, in versions; 0 is synchronous.")
@click.option("--seed", type=int, default=None, help="Seed of everything random.")
@click.option(
    "--engine",
    type=click.Choice(["torch", "vllm"]),
    default=None,
    help="Inference engine of the rollout workers; vllm needs its own environment: see PERIPLUS_ENGINES.",
)
@click.option("--control", is_flag=True, help="Control run: shuffle the rewards, so that nothing can be learnt.")
@click.option(
    "--resume",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    metavar="RUN",
    help="Resume from the newest checkpoint in this run directory, with the run's own job.",
)
@click.option("--change", is_flag=True, help="With --resume: let the other arguments change the run's job.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object on the last line.")
@click.option("--plain", is_flag=True, help="Print plain lines instead of the live view.")
@click.option(
    "--work-dir",
    type=DirectoryToWrite(),
    default=Path(),
    show_default=True,
    help="Directory to which the job's output.dir is relative.",
)
def demo(
    overrides: tuple[str, ...],
    wan: str,
    regions: str,
    file: Path | None,
    steps: int | None,
    staleness: int | None,
    seed: int | None,
    engine: str | None,
    control: bool,
    resume: Path | None,
    change: bool,
    as_json: bool,
    plain: bool,
    work_dir: Path,
) -> int:
    """Train a small model over three emulated regions, each service in its own process.

    KEY=VALUE overrides dotted keys of the job file, such as optimizer.lr=1e-3.
    """
    # The clock starts first: the time that a demo reports includes its checks.
    launched_s = clock.monotonic_s()
    flags = {
        "steps": steps,
        "staleness": staleness,
        "seed": seed,
        "engine.name": engine,
        "reward.name": "shuffled" if control else None,
    }
    is_own_job = file is None and resume is None and not any(word.startswith("model.path=") for word in overrides)
    if engine == "vllm" and is_own_job:
        flags["model.path"] = VLLM_MODEL
    # Later overrides win: the named options override KEY=VALUE, and both override the file.
    changes = [f"{key}={value}" for key, value in flags.items() if value is not None]
    network = grid.load(wan, tuple(name.strip() for name in regions.split(",") if name.strip()))
    names = _regions(wan, regions, network.regions)
    # A job must wait for all emulated regions. A resumed run keeps its own number unless the regions are named anew.
    width = [f"regions.min={len(names)}"] if regions or resume is None else []
    start = file or (example_file() if resume is None else None)
    job, checkpoint = job_to_submit(start, [*width, *overrides, *changes], resume, may_change=change)
    if checkpoint is not None:
        # The resumed run goes on in its own directory, which need not be below --work-dir.
        job = in_directory_of(checkpoint, job)
        if job.regions.min > len(names):
            raise ConfigError(
                f"{resume} needs at least {job.regions.min} regions (regions.min), but only {len(names)} would be "
                f"emulated; name as many of {', '.join(network.regions)} with --regions"
            )
    for unchecked in check_job(job).left:
        say(unchecked, err=True)
    settings = DemoSettings(
        job=job,
        resume=checkpoint,
        wan=wan,
        regions=names,
        work_dir=work_dir.absolute(),
        as_json=as_json,
        live=sys.stderr.isatty() and not plain,
        request_id=uuid.uuid4().hex,
        launched_s=launched_s,
    )
    return asyncio.run(run_demo(settings))


def _regions(wan: str, regions: str, known: tuple[str, ...]) -> tuple[str, ...]:
    if regions:
        names = tuple(name.strip() for name in regions.split(",") if name.strip())
        if not names:
            raise ConfigError(f"--regions {regions!r} names no region; give some of {', '.join(known)}")
        return names
    return grid.DEFAULT_REGIONS.get(wan, known[:3])
