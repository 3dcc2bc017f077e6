"""Watches the nodes of a Ray cluster for an agent, and holds a placement group on each of them.

    python -m region_agent.launchers.ray_nodes --address HOST:PORT --region NAME

Whenever nodes come or go it writes a JSON line with the cluster's address and the names of the nodes that are up and
held, the agent's own first. With the address `new` it starts a cluster, which ends with it. A group takes all of a
node's processors and accelerators, so that nobody else in the cluster gets what plans use. Groups outlive this process
and the agent, for processes that the next agent adopts. The line `release` on standard input gives them back; without
it, the end of standard input leaves them.
"""

import argparse
import json
import logging
import os
import select
import socket
import sys
from collections import Counter
from typing import Any

import ray
from ray.util import get_placement_group, placement_group, remove_placement_group

from region_agent.launchers.ray_cluster import NAMESPACE, group_name

POLL_S = 1.0
"""Seconds between two looks at the nodes. Chosen by hand."""

ANSWER_S = 2.0
"""Seconds in which a node's raylet must take a connection. Chosen by hand."""

MISSES = 2
"""Times in a row that a node must not answer to count as down. Ray itself needs half a minute. Chosen by hand."""

GROUP_S = 10.0
"""Seconds in which a node must give what it has. Chosen by hand."""


def main() -> int:
    """Watch until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", required=True)
    parser.add_argument("--region", required=True)
    options = parser.parse_args()
    address = None if options.address == "new" else options.address
    ray.init(
        address,
        include_dashboard=False if address is None else None,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    here, said = ray.get_runtime_context().get_node_id(), None
    held: dict[str, Any] = {}
    misses = Counter[str]()
    while True:
        alive = {each["NodeID"]: each for each in _nodes() if each["Alive"]}
        for node_id, node in alive.items():
            misses[node_id] = 0 if _answers(node) else misses[node_id] + 1
        up = {node_id: node for node_id, node in alive.items() if misses[node_id] < MISSES}
        for node_id, node in up.items():
            if node_id not in held and (group := _held(group_name(options.region, node["NodeName"]), node)):
                held[node_id] = group
        held = {node_id: group for node_id, group in held.items() if node_id in up}
        names = [up[node_id]["NodeName"] for node_id in sorted(held, key=lambda each: (each != here, each))]
        if names != said:
            at = ray.get_runtime_context().gcs_address
            sys.stdout.write(json.dumps({"address": at, "nodes": names}) + "\n")
            sys.stdout.flush()
            said = names
        if select.select([0], [], [], POLL_S)[0]:
            line = os.read(0, 1024)
            if line.startswith(b"release"):
                for group in held.values():
                    remove_placement_group(group)
            return 0


def _nodes() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def _answers(node: dict[str, Any]) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), ANSWER_S).close()
    except OSError:
        return False
    return True


def _held(name: str, node: dict[str, Any]) -> Any:
    """Return the placement group of this name, which is made if it is not there; None if the node is busy."""
    try:
        group = get_placement_group(name)
    except ValueError:
        free = {kind: node["Resources"][kind] for kind in ("CPU", "GPU") if node["Resources"].get(kind)}
        # By its id, since several nodes may have one address.
        here = {"ray.io/node-id": node["NodeID"]}
        group = placement_group([free], lifetime="detached", name=name, bundle_label_selector=[here])
    if group.wait(GROUP_S):
        return group
    remove_placement_group(group)
    sys.stderr.write(f"node {node['NodeName']} of the Ray cluster is used by others: it is left out\n")
    return None


if __name__ == "__main__":
    sys.exit(main())
