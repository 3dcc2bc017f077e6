"""Pieces of a benchmark that run by themselves: each in a process of its own, its result kept in a file.

A *section* is a list of cells and what their rows say together. A run that is given a folder keeps each cell's row
there as soon as it is there, and a later run with the same folder, size and seed goes on where the first one ended.
"""

import json
import multiprocessing
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.provenance import reached as reached

Row = dict[str, Any]
Rows = Mapping[str, Row]
"""By the cell's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of a whole run."""

    data: Path
    """Folder of the measured tables."""
    quick: bool
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One piece: a module's function and its arguments."""

    name: str
    run: Callable[..., Row]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    name: str
    cells: Callable[[Settings], list[Cell]]
    reach: Callable[[Rows], list[Row]]
    """Figures against targets, of the rows that are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Rows of one section, in files if there is a folder."""

    folder: Path | None
    settings: Settings
    commit: str

    def kept(self, section: str, cell: str) -> Row | None:
        path = self._path(section, cell)
        if path is None or not path.exists():
            return None
        row: Row = json.loads(path.read_text())
        return row

    def keep(self, section: str, cell: str, row: Row) -> None:
        if path := self._path(section, cell):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(row))
            partial.rename(path)

    def _path(self, section: str, cell: str) -> Path | None:
        if self.folder is None:
            return None
        size = "quick" if self.settings.quick else "full"
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", cell)
        return self.folder / f"{size}-{self.settings.seed}" / section / f"{name}.json"


def run_section(
    section: Section,
    store: Store,
    *,
    until_s: float,
    say: Callable[[str], None],
    wanted: Callable[[str], bool],
    jobs: int = 1,
) -> tuple[Rows, list[str]]:
    """The section's rows, and the names of cells that were not run because time was over (`until_s`, monotonic).

    `jobs`: so many cells at once, each in a process of its own.
    """

    def row_of(cell: Cell) -> Row | None:
        row = store.kept(section.name, cell.name)
        if row is None and time.monotonic() <= until_s:
            row = run_alone(cell) | {"commit": store.commit, "jobs": jobs}
            if "error" not in row:
                store.keep(section.name, cell.name, row)
            say(f"{section.name} {cell.name}: {short(row)}")
        return row

    cells = [cell for cell in section.cells(store.settings) if wanted(cell.name)]
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(row_of, cells))
    rows = {cell.name: row for cell, row in zip(cells, found, strict=True) if row is not None}
    return rows, [cell.name for cell in cells if cell.name not in rows]


def run_alone(cell: Cell) -> Row:
    """In a process that has done nothing before; what it raises is its row's `error`."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_guarded, cell).result()


def _guarded(cell: Cell) -> Row:
    began_s = time.monotonic()
    try:
        row = cell.run(*cell.arguments)
    except Exception as error:
        print(traceback.format_exc(), file=sys.stderr, flush=True)
        return {"error": f"{type(error).__name__}: {error}"}
    return row | {"cell_s": round(time.monotonic() - began_s, 2), "peak_gib": round(peak_gib(), 3)}


def peak_gib() -> float:
    """The largest resident size that this process has had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return kib / (1 << 20)


def short(row: Row) -> str:
    """A row's numbers and words for a line of progress."""
    parts = []
    for name, value in row.items():
        if isinstance(value, float):
            parts.append(f"{name} {value:.4g}")
        elif isinstance(value, (int, str)):
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def measured(rows: Rows) -> list[Row]:
    return [row for row in rows.values() if "error" not in row]


def most(rows: Iterable[Row], name: str) -> float | None:
    """The largest of a figure; None where no row has it."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return max(values) if values else None
