"""Protobuf stops at the boundary: in each package only the modules that convert, serve or dial import its messages."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOBUF = "periplus.pb"

BOUNDARY: dict[str, frozenset[str]] = {
    "planner": frozenset(),
    "trainer": frozenset(
        {
            "trainer/intake/convert.py",  # messages from and to values
            "trainer/intake/gateway.py",  # the trainer's streams to its gateway
        }
    ),
    "rollout_worker": frozenset(
        {
            "rollout_worker/convert.py",  # messages from and to values
            "rollout_worker/gateway.py",  # the worker's streams to its gateway
        }
    ),
    "region_agent": frozenset(
        {
            "region_agent/app.py",  # registers the servicer; training records and certificates pass through it unread
            "region_agent/control/certificates.py",  # the coordinator's answer is passed on to the trainer as it came
            "region_agent/control/convert.py",  # messages of the session from and to values
            "region_agent/control/links.py",  # dials the probe of another region's gateway
            "region_agent/control/session.py",  # dials the coordinator
            "region_agent/gateway/convert.py",  # messages of workers, trainer and other gateways from and to values
            "region_agent/gateway/service.py",  # serves
            "region_agent/gateway/upstream.py",  # dials the gateway above
            "region_agent/relay/paths.py",  # dials relays
            "region_agent/relay/pipe.py",  # dials a relay, and carries bytes in its messages
            "region_agent/relay/switchboard.py",  # passes messages on between two calls
            "region_agent/weights/disk/convert.py",  # publications lie on disk as they travel
        }
    ),
    "coordinator": frozenset(
        {
            "coordinator/app.py",  # registers the servicer
            "coordinator/convert.py",  # messages from and to values
            "coordinator/service.py",  # serves
            "coordinator/client/commands.py",  # commands that submit, list and stop jobs
            "coordinator/client/connection.py",  # dials the coordinator
            "coordinator/client/fleet_file.py",  # a fleet file of the coordinator's answer
            "coordinator/client/profiling.py",  # orders profiles, and follows them in the fleet
            "coordinator/client/library/calls.py",  # dials the coordinator for scripts
            "coordinator/client/library/submitted_job.py",  # values for scripts of the coordinator's answers
            "coordinator/client/listing.py",  # text and JSON of the coordinator's answers
            "coordinator/client/planned.py",  # text of the plan in the coordinator's answer
            "coordinator/client/submission.py",  # the request that submits a job
            "coordinator/demo/run.py",  # submits the demo's job and waits for its end
        }
    ),
    "periplus": frozenset(
        {
            "periplus/net/convert.py",  # what several services convert
            "periplus/net/joining.py",  # one call, which agents and operators make
            "periplus/net/rpc.py",  # maps gRPC's errors and details to ours
            "periplus/wan/app.py",  # registers the emulator's servicer
            "periplus/wan/client.py",  # dials the emulator
            "periplus/wan/service.py",  # serves
        }
    ),
}
"""By package: exactly the modules that import protobuf messages, apart from the generated ones themselves."""


def imported(path: Path) -> Iterator[str]:
    """Names of imported modules, and of what is imported from them, since that may be a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def product_modules(package: str) -> list[Path]:
    generated = ROOT / PROTOBUF.replace(".", "/")
    return [path for path in sorted((ROOT / package).rglob("*.py")) if generated not in path.parents]


@pytest.mark.parametrize("package", BOUNDARY)
def test_only_the_boundary_of_a_package_imports_protobuf(package: str) -> None:
    modules = product_modules(package)
    assert modules, "the package has moved"
    found = {
        str(path.relative_to(ROOT))
        for path in modules
        if any(f"{name}.".startswith(f"{PROTOBUF}.") for name in imported(path))
    }
    assert found == BOUNDARY[package]
