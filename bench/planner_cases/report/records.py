"""What was run: the rows of one or several runs of `bench.planner`, and which pieces are missing.

A run is the JSON object that `bench.planner` prints, in a file, or the folder that it was given as `--keep`. Runs of
one size and seed are put together. Which pieces a section has, and what its figures are, is asked of the benchmark
itself: a run of a few chosen pieces looks whole in its own record, and is not.
"""

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.planner import SECTIONS
from bench.planner_cases.cells import Row, Rows, Section, Settings, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One file or folder."""

    quick: bool
    seed: int
    machine: Row | None
    """None: a folder of rows does not say."""
    sections: Mapping[str, Rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One section, as far as it was run."""

    name: str
    rows: Rows = field(default_factory=dict)
    """Of the pieces that were measured, in the benchmark's order."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Pieces that ended with an error, and the error."""
    left: tuple[str, ...] = ()
    """Pieces that were never run."""
    reach: Sequence[Row] = ()
    """Figures of the measured pieces; of the section only if it `is_whole`."""

    @property
    def num_cells(self) -> int:
        return len(self.rows) + len(self.failed) + len(self.left)

    @property
    def is_whole(self) -> bool:
        return bool(self.rows) and not self.failed and not self.left

    @property
    def commits(self) -> tuple[str, ...]:
        """Short, in order of appearance."""
        return tuple(dict.fromkeys(str(row["commit"])[:7] for row in self.rows.values() if "commit" in row))

    @property
    def most_jobs(self) -> int | None:
        """Pieces that ran at once; None where no row says."""
        return max((int(row["jobs"]) for row in self.rows.values() if "jobs" in row), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All runs together."""

    quick: bool
    seed: int
    machines: Sequence[Row]
    parts: Mapping[str, Part]

    def rows(self, section: str) -> list[Row]:
        return list(self.parts[section].rows.values())


def read(path: Path) -> Run:
    """Raises: ValueError where this is no run of `bench.planner`."""
    return _folder(path) if path.is_dir() else _file(path)


def _file(path: Path) -> Run:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    try:
        record = json.loads(lines[-1])
        results, config = record["results"], record["config"]
    except (IndexError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: its last line is not a record of bench.planner ({error!r})") from error
    return Run(
        quick=config["quick"],
        seed=config["seed"],
        machine=record["machine"],
        sections={name: found["rows"] for name, found in results.items() if name in SECTIONS},
    )


def _folder(path: Path) -> Run:
    """The folder that was given as `--keep`, or the one of a size and seed in it."""
    names = re.compile(r"(full|quick)-(\d+)")
    found = [each for each in (path, *sorted(path.iterdir())) if each.is_dir() and names.fullmatch(each.name)]
    if len(found) != 1:
        raise ValueError(f"{path}: one folder full-SEED or quick-SEED is expected in it, there are {len(found)}")
    match = names.fullmatch(found[0].name)
    assert match
    settings = Settings(data=Path(), quick=match[1] == "quick", seed=int(match[2]))
    store = Store(folder=found[0].parent, settings=settings, commit="")
    sections = {
        name: {cell.name: row for cell in section.cells(settings) if (row := store.kept(name, cell.name)) is not None}
        for name, section in all_sections().items()
    }
    return Run(quick=settings.quick, seed=settings.seed, machine=None, sections=sections)


def all_sections() -> dict[str, Section]:
    return {
        name: getattr(importlib.import_module(f"bench.planner_cases.{module}"), function)()
        for name, (module, function) in SECTIONS.items()
    }


def merged(runs: Sequence[Run], sections: Mapping[str, Section] | None = None) -> Record:
    """Raises: ValueError for runs of different sizes or seeds, two answers of one piece, or pieces that nobody "
    "knows."""
    if len({(run.quick, run.seed) for run in runs}) != 1:
        raise ValueError("runs of one size and one seed are expected")
    settings = Settings(data=Path(), quick=runs[0].quick, seed=runs[0].seed)
    sections = all_sections() if sections is None else sections
    parts = {name: _part(section, settings, runs) for name, section in sections.items()}
    machines = [run.machine for run in runs if run.machine]
    return Record(quick=settings.quick, seed=settings.seed, machines=machines, parts=parts)


def _part(section: Section, settings: Settings, runs: Sequence[Run]) -> Part:
    """A piece that failed in one run and was measured in another one counts as measured."""
    names = [cell.name for cell in section.cells(settings)]
    rows: dict[str, Row] = {}
    failed: dict[str, str] = {}
    for run in runs:
        for name, row in run.sections.get(section.name, {}).items():
            if name not in names:
                raise ValueError(f"{section.name}: the benchmark has no piece {name!r}")
            if "error" in row:
                failed[name] = str(row["error"])
            elif rows.setdefault(name, row) != row:
                raise ValueError(f"{section.name} {name}: two runs say different things; leave one of them out")
    ordered = {name: rows[name] for name in names if name in rows}
    try:
        reach = section.reach(ordered) if ordered else ()
    except KeyError as error:
        raise ValueError(f"{section.name}: rows without {error}, so of another version of the benchmark") from error
    return Part(
        name=section.name,
        rows=ordered,
        failed={name: why for name, why in failed.items() if name not in rows},
        left=tuple(name for name in names if name not in rows and name not in failed),
        reach=reach,
    )
