"""Readers of the planner's input files: fleets, workloads, architectures of checkpoints, and CSV tables.

Lines of a CSV table that begin with `#` are comments.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

from periplus.config import file_kinds, loading
from periplus.errors import ConfigError
from planner.devices.catalogue import architectures
from planner.devices.catalogue.gpus import CPU_CORE
from planner.files.fleet_file import fleet_of
from planner.files.huggingface import architecture_of_config
from planner.files.workload_file import Sources, workload_of
from planner.problem.architecture import Architecture
from planner.problem.fleet import Fleet
from planner.problem.hardware import GpuType
from planner.problem.workload import Workload


def read_rows(path: Path) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a CSV file with a header; each maps column names to texts. Raises: ConfigError."""
    try:
        rows = tuple(csv.DictReader(_lines(loading.read_text(path))))
    except csv.Error as error:
        raise ConfigError(f"{path}: cannot be read as CSV: {error}") from error
    for i, row in enumerate(rows):
        if None in row or None in row.values():
            raise ConfigError(f"{path}, row {i + 1}: has not as many values as the header; is the file complete?")
    return rows


def load_fleet(path: Path, cpu_core: GpuType = CPU_CORE) -> Fleet:
    """Return the fleet of a fleet file. Raises: ConfigError."""
    tree = loading.read_yaml(path)
    file_kinds.need_kind(tree, str(path), ("fleet",))
    return fleet_of(tree, str(path), cpu_core)


def load_workload(path: Path) -> Workload:
    """Return the workload of a workload file and of the files that it refers to. Raises: ConfigError."""
    folder = path.parent
    sources = Sources(config_json=lambda name: _config_json(folder / name), rows=lambda name: read_rows(folder / name))
    tree = loading.read_yaml(path)
    file_kinds.need_kind(tree, str(path), ("workload",))
    return workload_of(tree, str(path), sources)


def load_architecture(model_path: str) -> Architecture:
    """Return the architecture of a job's model: a known name or a local checkpoint. Raises: ConfigError."""
    known = architectures()
    if model_path in known:
        return known[model_path]
    return architecture_of_config(_config_json(Path(model_path)), model_path)


def _config_json(path: Path) -> object:
    file = path / "config.json" if path.is_dir() else path
    return loading.parse_json(loading.read_text(file), str(file))


def _lines(text: str) -> Iterator[str]:
    """Yield the lines with their ends, without comments and empty lines."""
    lines = io.StringIO(text.lstrip("\ufeff"), newline="")
    return (line for line in lines if line.strip() and not line.startswith("#"))
