"""Readers of the planner's input files: fleets, workloads, architectures of checkpoints, measured tables."""

from pathlib import Path

from periplus.config import file_kinds, loading
from planner.devices.catalogue import architectures
from planner.devices.catalogue.gpus import CPU_CORE
from planner.files.fleet_file import fleet_of
from planner.files.huggingface import architecture_of_config
from planner.files.importers import egress, network, prices
from planner.files.importers.cells import Row
from planner.files.importers.generate import Tables
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


def load_tables(data: Path) -> Tables:
    """Return the measured tables below one folder, which is laid out like the data sets. Raises: ConfigError."""

    def rows(name: str) -> tuple[Row, ...]:
        return read_rows(data / name)

    return Tables(
        network=network.skyplane_grid(rows("network_skyplane/grid.csv")),
        # The order matters: of several prices for one offer the later table's counts.
        prices=prices.merged(
            (
                prices.aws_spot(rows("gpu_prices/aws_spot_by_az.csv")),
                prices.aws_on_demand(rows("gpu_prices/aws_ondemand_2026-01-21.csv")),
                prices.gcp(rows("gpu_prices/gcp_gpu_prices.csv")),
                prices.neoclouds(rows("gpu_prices/neoclouds_skypilot_catalog_v8.csv")),
            )
        ),
        egress=egress.merged(
            (
                egress.aws(rows("egress_prices/aws_transfer_usd_per_gb_2022-12-04.csv")),
                egress.gcp_internet(rows("egress_prices/gcp_internet_egress_2025-12-19.csv")),
                egress.skyplane(rows("egress_prices/skyplane_egress_usd_per_gb.csv")),
            )
        ),
    )
