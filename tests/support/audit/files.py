"""Audit a run directory that a test has written, copy it, or write the spool of a gateway for it."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from periplus.audit.auditor import Report
from periplus.audit.read import audit_run
from periplus.codec.frame import unpack
from periplus.spool.format import Durability
from periplus.spool.reader import SpoolReader
from periplus.spool.spool import Spool
from periplus.values.transport_keys import FrameKey, pack_keyed


def audited(root: Path, *spools: Path, authorities: Sequence[bytes] = ()) -> Report:
    """Return the report of an audit of the run and of the gateways' spools."""
    return audit_run(root, spools, lambda what, done, total: None, authorities)


def copy_run(run: Path, to: Path) -> Path:
    """Copy a run for a test that damages it."""
    shutil.copytree(run, to)
    return to


def gateway_spool(run: Path, folder: Path) -> Path:
    """Write the spool of a gateway that kept every frame it sent to this run's trainer."""
    spool = Spool.open(folder, durability=Durability.PROCESS, max_bytes=1 << 30)
    for number, record in enumerate(SpoolReader.open(run / "trajectories").records()):
        key = FrameKey(worker_id="rollout-eu-0", epoch=1, sequence=number)
        spool.append(*pack_keyed(key, unpack(record.data, max_payload_bytes=1 << 20)))
    spool.close()
    return folder
