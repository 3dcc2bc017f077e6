"""Watches the nodes of a Ray cluster for an agent, and holds a placement group on each of them.

    python -m region_agent.launchers.ray_nodes --address HOST:PORT --region NAME

Whenever nodes come or go it writes a JSON line with the cluster's address, the name of the agent's own node, and the
names of the nodes that are up and held. A node without processors and accelerators is left out. With the address `new`
it starts a cluster, which ends with it. A group takes all of a node's processors and accelerators, so that nobody else
in the cluster gets what plans use. Groups outlive this process and the agent, for processes that the next agent adopts.
The line `release` on standard input gives them back; without it, the end of standard input leaves them.
"""

import argparse
import json
import logging
import os
import select
import socket
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import ray
from ray.util import get_placement_group, placement_group, placement_group_table, remove_placement_group

from periplus import clock
from region_agent.launchers.ray_cluster import NAMESPACE, group_name

POLL_S = 1.0
"""Seconds between two looks at the nodes. Chosen by hand."""

ANSWER_S = 2.0
"""Seconds in which a node's raylet must take a connection. Chosen by hand."""

MISSES = 2
"""Times in a row that a node must not answer to count as down. Ray itself needs half a minute. Chosen by hand."""

GROUP_S = 10.0
"""Seconds after which a node that has not given what it has is said to be left out. Chosen by hand."""


def main() -> int:
    """Watch until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", required=True)
    parser.add_argument("--region", required=True)
    options = parser.parse_args()
    is_new = options.address == "new"
    ray.init(
        "local" if is_new else options.address,  # Ray's word for a cluster that is started here, whatever runs here
        include_dashboard=False if is_new else None,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    here, groups = ray.get_runtime_context().get_node_id(), Groups(options.region)
    own, began_s, said, misses = "", clock.monotonic_s(), None, Counter[str]()
    before: Collection[str] = ()
    while True:
        found = {each["NodeID"]: each for each in _nodes() if each["Alive"]}
        own = found[here]["NodeName"] if here in found else own
        alive = {node_id: node for node_id, node in found.items() if _free(node)}
        for node_id, node in alive.items():
            misses[node_id] = 0 if _answers(node) else misses[node_id] + 1
        up = {node_id: node for node_id, node in alive.items() if misses[node_id] < MISSES}
        held = groups.held(up)
        names = [up[node_id]["NodeName"] for node_id in sorted(held, key=lambda each: (each != here, each))]
        # A cluster that has just started may not show all nodes at the first look.
        is_started = (own and len(held) == len(up) and up.keys() == before) or clock.monotonic_s() - began_s > GROUP_S
        before = up.keys()
        if names != said and (names or said) and is_started:
            at = ray.get_runtime_context().gcs_address
            sys.stdout.write(json.dumps({"address": at, "own": own, "nodes": names}) + "\n")
            sys.stdout.flush()
            said = names
        if select.select([0], [], [], POLL_S)[0]:
            if os.read(0, 1024).startswith(b"release"):
                groups.release()
            return 0


class Groups:
    """The placement groups of a region, one a node."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._groups: dict[str, Any] = {}  # by the id of the node
        self._asked_s: dict[str, float] = {}
        self._held: set[str] = set()
        self._told: set[str] = set()

    def held(self, up: Mapping[str, dict[str, Any]]) -> set[str]:
        """Return the ids of the nodes that are held, of those that are up. Others are asked for again and again."""
        for node_id in self._groups.keys() - up.keys():
            del self._groups[node_id]
            self._held.discard(node_id)
        for node_id, node in up.items():
            name, now_s = group_name(self._region, node["NodeName"]), clock.monotonic_s()
            if node_id not in self._groups:
                self._groups[node_id], self._asked_s[node_id] = _group(name, node), now_s
            if node_id not in self._held:
                # Not its `wait`, which may time out although the group is there.
                if placement_group_table(self._groups[node_id])["state"] == "CREATED":
                    self._held.add(node_id)
                elif now_s - self._asked_s[node_id] > GROUP_S:
                    # It may be a group of this name on a node that is gone: the next look makes another.
                    remove_placement_group(self._groups.pop(node_id))
                    if node_id not in self._told:
                        self._told.add(node_id)
                        sys.stderr.write(f"node {node['NodeName']} of the Ray cluster is left out: others use it\n")
        return self._held & up.keys()

    def release(self) -> None:
        """Give all nodes back, also those that are gone."""
        for group in placement_group_table().values():
            if group["name"].startswith(group_name(self._region, "")) and group["state"] != "REMOVED":
                remove_placement_group(get_placement_group(group["name"]))


def _nodes() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def _answers(node: dict[str, Any]) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), ANSWER_S).close()
    except OSError:
        return False
    return True


def _free(node: dict[str, Any]) -> dict[str, float]:
    return {kind: node["Resources"][kind] for kind in ("CPU", "GPU") if node["Resources"].get(kind)}


def _group(name: str, node: dict[str, Any]) -> Any:
    """Return the placement group of this name on a node, which is made if it is not there."""
    try:
        return get_placement_group(name)
    except ValueError:
        # By its id, since several nodes may have one address.
        here = {"ray.io/node-id": node["NodeID"]}
        return placement_group([_free(node)], lifetime="detached", name=name, bundle_label_selector=[here])


if __name__ == "__main__":
    sys.exit(main())
