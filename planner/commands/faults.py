"""Faults on the command line of `periplus simulate`: lost devices, links with changed rates, traces of spot instances.

The texts of the options become a `Faults` value for one fleet and plan. A fault that would change nothing is refused,
because nothing has its name or because the plan does not use it. So is a fault that the simulator cannot simulate, such
as the loss of a trainer.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from periplus.config import loading
from planner.answer.placement import Placement
from planner.commands.numbers import MAX_STEP_S
from planner.files.loaders import read_rows
from planner.problem.device_classes import classes_of
from planner.problem.fleet import Fleet
from planner.problem.ranges import some
from planner.problem.workload import SCORING, TRAINING, Task
from planner.simulate.faults import Availability, Faults, RateChange, availability_of, ticks_counts, trace_counts

MAX_FACTOR = 1000.0
"""Largest factor on a link's measured rate. Chosen by hand."""
MAX_AT_S = 100 * MAX_STEP_S
"""Largest simulated second at which a fault may happen."""


class FaultTarget:
    """The fleet and the plan that faults apply to. `idle` has the indices of generating pools that make no samples."""

    def __init__(self, fleet: Fleet, placement: Placement, idle: frozenset[int]) -> None:
        self._classes = {each.key: each for each in classes_of(fleet)}
        self._regions = sorted(region.name for region in fleet.regions)
        self._links = {(link.src_region, link.dst_region) for link in fleet.links}
        generating = placement.group_of(Task.GENERATION).pools
        # Classes that generate samples, and all tasks of each class.
        self._makes = {pool.device_class for i, pool in enumerate(generating) if i not in idle}
        self._does: dict[str, set[Task]] = {}
        self._meshes: list[set[str]] = []
        """Regions of each training mesh."""
        for group in placement.groups:
            if group.trains:
                self._meshes.append({self._classes[pool.device_class].region.name for pool in group.pools})
            for pool in group.pools:
                self._does.setdefault(pool.device_class, set()).update(group.tasks)

    def faults(self, lose: Sequence[str], rate: Sequence[str], trace: Path | None, trace_of: str | None) -> Faults:
        """Return the faults that the texts of `--lose`, `--rate`, `--trace` and `--trace-of` describe.

        Raises: click.UsageError, which names the option and its value; ConfigError for a trace that cannot be read.
        """
        gone = [self._loss(text) for text in lose]
        if trace is not None and trace_of is not None:
            # Checked before the file is read: a wrong name is the simpler error.
            self._check_subject(trace_of, f"--trace-of {trace_of}")
            try:
                gone += availability_of(_counts(trace), trace_of)
            except ValueError as error:
                raise click.UsageError(f"--trace {trace}: {error}") from error
        return Faults(availability=tuple(gone), rates=tuple(self._change(text) for text in rate))

    def _loss(self, text: str) -> Availability:
        flag = f"--lose {text}"
        subject, fraction, at_s = _fault(text, flag, "eu-west=0.5@120")
        if fraction > 1:
            raise click.UsageError(f"{flag}: the fraction that is left is {fraction:g}, but must be from 0 to 1")
        self._check_subject(subject, flag)
        return Availability(time_s=at_s, subject=subject, fraction=fraction)

    def _change(self, text: str) -> RateChange:
        flag = f"--rate {text}"
        what, factor, at_s = _fault(text, flag, "us-east>eu-west=0.5@120")
        src, arrow, dst = what.partition(">")
        if not arrow:
            raise click.UsageError(f"{flag}: write SRC>DST=FACTOR@SECONDS")
        if factor > MAX_FACTOR:
            raise click.UsageError(
                f"{flag}: the factor on the measured rate is {factor:g}, but must be from 0 to {MAX_FACTOR:g}"
            )
        # Say whether the region or only the link is unknown.
        if (src, dst) not in self._links:
            unknown = [name for name in (src, dst) if name not in self._regions]
            why = f"the fleet has no region {unknown[0]}" if unknown else f"no link was measured from {src} to {dst}"
            raise click.UsageError(f"{flag}: {why}; {self._known_links(src)}")
        # A mesh trains over links inside of a step. With rate 0 the step would never end.
        if not factor and any({src, dst} <= regions for regions in self._meshes):
            raise click.UsageError(
                f"{flag}: {src} and {dst} train together, and the simulator cannot run a mesh without its link; give a "
                "small factor instead"
            )
        return RateChange(time_s=at_s, src_region=src, dst_region=dst, factor=factor)

    def _known_links(self, src: str) -> str:
        found = [f"{a}>{b}" for a, b in sorted(self._links) if a == src] or [f"{a}>{b}" for a, b in sorted(self._links)]
        return f"links are {some(found)}" if found else "the fleet has no links"

    def _check_subject(self, subject: str, flag: str) -> None:
        """Check that `subject`, which `flag` loses, is a class or a region with spot machines, and only generates.

        Raises: click.UsageError otherwise.
        """
        if subject in self._classes:
            keys = [subject]
        elif subject in self._regions:
            # A region stands for its spot classes only, as `Availability.subject` says.
            keys = [key for key, at in self._classes.items() if at.region.name == subject and at.is_spot]
            if not keys:
                classes = [key for key, at in self._classes.items() if at.region.name == subject]
                raise click.UsageError(f"{flag}: {subject} has no spot machines; name a class: {some(classes)}")
        else:
            known = some([*self._classes, *self._spot_regions()])
            raise click.UsageError(f"{flag}: the fleet has no such class or region; there are {known}")
        for key in keys:
            # The simulator restarts lost samples, and nothing else that devices may lose.
            if others := [task for task in Task if task in self._does.get(key, ()) and task is not Task.GENERATION]:
                raise click.UsageError(f"{flag}: {_reason(key, others)}{self._instead()}")
        # The loss would change nothing.
        if not self._makes & set(keys):
            raise click.UsageError(f"{flag}: the plan generates nothing there{self._instead()}")

    def _instead(self) -> str:
        may = [key for key in self._makes if self._does[key] == {Task.GENERATION}]
        return f"; classes that can be lost are {some(sorted(may))}" if may else "; no device of this plan can be lost"

    def _spot_regions(self) -> list[str]:
        return sorted({at.region.name for at in self._classes.values() if at.is_spot})


def _reason(key: str, others: Sequence[Task]) -> str:
    if training := [task for task in others if task in TRAINING]:
        return f"{key} does {_words(training)}, and the simulator cannot simulate the loss of a trainer"
    scoring = [task for task in others if task in SCORING]
    return f"{key} does {_words(scoring)}, and the simulator can only simulate the loss of machines that only generate"


def _words(tasks: Sequence[Task]) -> str:
    return " and ".join(task.value.replace("_", " ") for task in tasks)


def _fault(text: str, flag: str, example: str) -> tuple[str, float, float]:
    """Return (subject, number, seconds) of a text `SUBJECT=NUMBER@SECONDS`. Raises: click.UsageError."""
    what, _, numbers = text.rpartition("=")
    value, at, when = numbers.partition("@")
    try:
        number, at_s = float(value), float(when)
    except ValueError:
        # Fails every comparison below, which reports the form of the option.
        number, at_s = math.nan, math.nan
    if not what or not at or not (0 <= number < math.inf and 0 <= at_s <= MAX_AT_S):
        raise click.UsageError(f"{flag}: write WHAT=NUMBER@SECONDS, such as {example}")
    return what, number, at_s


def _counts(trace: Path) -> tuple[tuple[float, float], ...]:
    """Return pairs (time_s, number of instances) of a trace file. Raises: ConfigError, ValueError."""
    if trace.suffix != ".json":
        return trace_counts(read_rows(trace))
    tree: Any = loading.parse_json(loading.read_text(trace), str(trace))
    try:
        return ticks_counts(float(tree["metadata"]["gap_seconds"]), [float(count) for count in tree["data"]])
    except (KeyError, TypeError) as error:
        raise ValueError(
            "a JSON trace needs metadata.gap_seconds and a list `data` of numbers, as SkyPilot's traces have"
        ) from error
