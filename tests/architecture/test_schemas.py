"""Names of the formats that users' files and programs hold: a renamed module or class never changes one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("periplus", "planner", "coordinator", "region_agent", "rollout_worker", "trainer")
NAME = re.compile(r"\"(periplus\.[\w.-]+/\d+)\"")
KNOWN = {
    "periplus.agent-policy/1",
    "periplus.audit-report/1",
    "periplus.audit/2",
    "periplus.capabilities/1",
    "periplus.checkpoint/1",
    "periplus.copy/1",
    "periplus.delta/1",
    "periplus.devices/1",
    "periplus.findings/1",
    "periplus.fleet/1",
    "periplus.job-status/1",
    "periplus.job/1",
    "periplus.local-fleet/1",
    "periplus.plan-comparison/1",
    "periplus.plan-difference/1",
    "periplus.plan-explanation/1",
    "periplus.plan/1",
    "periplus.profile/1",
    "periplus.region-status/1",
    "periplus.samples/1",
    "periplus.simulation/1",
    "periplus.wan/1",
    "periplus.weights-delta/1",
    "periplus.weights-verdict/1",
    "periplus.workload/1",
}


def test_every_schema_that_is_written_or_read_has_the_name_that_it_always_had() -> None:
    found = {
        name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in NAME.findall(path.read_text(encoding="utf-8"))
    }
    assert found == KNOWN
