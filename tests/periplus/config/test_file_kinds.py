from typing import Any

import pytest

from periplus.config.file_kinds import need_kind
from periplus.errors import ConfigError

FLEET = {"schema": "periplus.fleet/1", "regions": []}
PLAN = {"schema": "periplus.plan/1"}
WORKLOAD = {"schema": "periplus.workload/1", "eta": 1}
JOB: dict[str, object] = {"model": {}, "train": {}}


def unsaid(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key != "schema"}


@pytest.mark.parametrize(
    ("tree", "wanted", "message"),
    [
        (FLEET, ("job", "workload"), "f: is a fleet, as its schema says; give a job or a workload"),
        (PLAN, ("job", "workload"), "f: is a plan, as its schema says; give a job or a workload"),
        ({"schema": "periplus.audit/1"}, ("fleet",), "f: is an audit, as its schema says; give a fleet"),
        (WORKLOAD, ("fleet",), "f: is a workload, as its schema says; give a fleet"),
        (JOB, ("fleet",), "f: looks like a job; give a fleet"),
        (unsaid(FLEET), ("job",), "f: looks like a fleet; give a job"),
        (unsaid(FLEET), ("fleet",), "f: looks like a fleet, but has no schema; add schema: periplus.fleet/1"),
        (unsaid(WORKLOAD), ("job", "workload"), "looks like a workload, but has no schema; add schema: periplus.work"),
    ],
)
def test_a_file_of_another_kind_is_called_what_it_is(
    tree: dict[str, Any], wanted: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        need_kind(tree, "f", wanted)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("tree", "wanted"),
    [
        (FLEET, ("fleet",)),
        (WORKLOAD, ("job", "workload")),
        (JOB, ("job",)),
        ({}, ("job",)),
        ({}, ("fleet",)),
        ({"schema": "other/1"}, ("fleet",)),
        ({"zzz": 1}, ("job",)),
        ({"regions": {"min": 2}}, ("job",)),
        ({"regions": ["a", "b"]}, ("job",)),
        ({**JOB, "eta": 1}, ("job",)),
        ({"train": {}, "eta": 1}, ("job",)),
    ],
)
def test_what_is_wanted_or_unknown_passes(tree: dict[str, Any], wanted: tuple[str, ...]) -> None:
    need_kind(tree, "f", wanted)
