"""Readers of the planner's input files: fleets, workloads, architectures of checkpoints, measured tables."""

from pathlib import Path

from periplus.config import file_kinds, loading
from planner.devices.catalogue import architectures
from planner.devices.catalogue.gpus import CPU_CORE
from planner.files.fleet_file import fleet_of
from planner.files.huggingface import architecture_of_config
from planner.files.importers.cells import Row
from planner.files.importers.tables import rows_of
from planner.files.workload_file import Sources, workload_of
from planner.problem.architecture import Architecture
from planner.problem.fleet import Fleet
from planner.problem.hardware import GpuType
from planner.problem.workload import Workload


def read_rows(path: Path) -> tuple[Row, ...]:
    """Return the rows of a CSV file with a header. Raises: ConfigError."""
    return rows_of(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Return the text of a file. Raises: ConfigError."""
    return loading.read_text(path)


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
    return loading.parse_json(read_text(file), str(file))
