import json
from pathlib import Path

import pytest

from planner import solve
from planner.files.fleet_file import to_tree
from planner.files.workload_file import to_tree as workload_tree
from tests.support.planner.gpu_plan import FLEET, WORKLOAD, gpu_plan
from tests.support.planner.quick_method import quick


@pytest.fixture(autouse=True)
def _quick_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve, "method_of", lambda name: quick)


@pytest.fixture
def gpu_fleet(tmp_path: Path) -> str:
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps(to_tree(FLEET)))
    return str(path)


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(workload_tree(WORKLOAD)))
    return str(path)


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(gpu_plan().to_json())
    return str(path)


@pytest.fixture
def hosts(tmp_path: Path) -> str:
    """Two hosts, as a fleet file may say it."""
    path = tmp_path / "hosts.json"
    links = [
        {"src_region": src, "dst_region": dst, "rtt_s": 0.1, "throughput_bits_per_s": 1e9} for src, dst in ("ab", "ba")
    ]
    regions = [{"name": name, "num_cores": 2, "memory_bytes": 8 * 10**9} for name in "ab"]
    path.write_text(json.dumps({"schema": "periplus.fleet/1", "regions": regions, "links": links}))
    return str(path)
