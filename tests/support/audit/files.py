"""Audit a run directory that a test has written, copy it, or write the spool of a gateway for it."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from periplus.audit.auditor import Report
from periplus.audit.run_reader import audit_run, frame_trajectories
from periplus.codec import trajectory as codec
from periplus.codec.frame import CodecId, Frame, unpack
from periplus.spool.format import Durability
from periplus.spool.reader import SpoolReader
from periplus.spool.spool import Spool
from periplus.values.trajectory import Trajectory
from periplus.values.transport_keys import FrameKey, pack_keyed


def audited(root: Path, *spools: Path, authorities: Sequence[bytes] = ()) -> Report:
    """Return the report of an audit of the run and of the gateways' spools."""
    return audit_run(root, spools, lambda what, done, total: None, authorities)


def copy_run(run: Path, to: Path) -> Path:
    """Copy a run for a test that damages it."""
    shutil.copytree(run, to)
    return to


def gateway_spool(run: Path, folder: Path, change: Callable[[Trajectory], Trajectory] | None = None) -> Path:
    """Write the spool of a gateway that kept every frame it sent, with trajectories changed by `change`."""
    spool = Spool.open(folder, durability=Durability.PROCESS, max_bytes=1 << 30)
    for number, record in enumerate(SpoolReader.open(run / "trajectories").records()):
        key = FrameKey(worker_id="rollout-eu-0", epoch=1, sequence=number)
        frame = unpack(record.data, max_payload_bytes=1 << 20)
        if change is not None:
            changed = [change(t) for t in frame_trajectories(record.data)]
            frame = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, codec.encode(changed))
        spool.append(*pack_keyed(key, frame))
    spool.close()
    return folder
