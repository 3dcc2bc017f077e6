"""Protobuf stops at the boundary: in each package only the modules that convert, serve or dial import its messages."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "periplus" / "pb"

BOUNDARY: dict[str, set[str]] = {
    "coordinator": {
        "coordinator/app.py",  # the server
        "coordinator/convert.py",  # messages of agents and operators from and to values
        "coordinator/service.py",  # the servicer
        "coordinator/client/commands.py",  # requests of operators' commands
        "coordinator/client/connection.py",  # the stub
        "coordinator/client/fleet_file.py",  # answers as a fleet file
        "coordinator/client/listing.py",  # answers as tables
        "coordinator/client/resuming.py",  # the job of a run that is resumed
        "coordinator/demo/run.py",  # the demo submits and watches a job
    },
    "periplus": {
        "periplus/net/convert.py",  # messages that several services share
        "periplus/net/rpc.py",  # errors in the trailing metadata
        "periplus/wan/app.py",  # the emulator's server
        "periplus/wan/client.py",  # the stub
        "periplus/wan/service.py",  # the servicer
    },
    "planner": set(),
    "region_agent": {
        "region_agent/app.py",  # the gateway's server
        "region_agent/control/certificates.py",  # requests that the session forwards as they came
        "region_agent/control/convert.py",  # orders and reports from and to values
        "region_agent/control/inventory.py",  # the hello's description of this machine
        "region_agent/control/links.py",  # the probe's stub
        "region_agent/control/session.py",  # the stream to the coordinator
        "region_agent/gateway/convert.py",  # messages of a job's streams from and to values
        "region_agent/gateway/service.py",  # the servicer
        "region_agent/gateway/upstream.py",  # the streams to the home gateway
        "region_agent/weights/disk/convert.py",  # records of publications on disk
    },
    "rollout_worker": {
        "rollout_worker/convert.py",  # messages of both streams from and to values
        "rollout_worker/gateway.py",  # the streams
    },
    "trainer": {
        "trainer/intake/convert.py",  # messages of the stream from and to values
        "trainer/intake/gateway.py",  # the streams
    },
}
"""By package: exactly the modules that import protobuf messages, and what for."""


def imports_protobuf(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(module=str(module)):
                names = [f"{module}.{alias.name}" for alias in node.names]
            case ast.Import():
                names = [alias.name for alias in node.names]
            case _:
                continue
        if any(f"{name}.".startswith("periplus.pb.") for name in names):
            return True
    return False


@pytest.mark.parametrize("package", BOUNDARY)
def test_only_the_boundary_of_a_package_imports_protobuf(package: str) -> None:
    modules = [path for path in (ROOT / package).rglob("*.py") if GENERATED not in path.parents]
    assert modules, "the package has moved"
    assert {str(path.relative_to(ROOT)) for path in modules if imports_protobuf(path)} == BOUNDARY[package]
