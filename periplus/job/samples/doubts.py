"""The workers whose samples were found not to be of the weights that they named, as the audit's journal says."""

import mmap

from periplus.audit.records import DoubtEntry, from_line
from periplus.errors import CorruptFrame
from periplus.job.run_directory import RunDirectory
from periplus.values.policy import Policy
from periplus.values.trajectory import Trajectory

_MARK = b'"kind":"doubt"'


def read_doubts(run: RunDirectory) -> list[DoubtEntry]:
    """Return the doubts of a run's journal, in their order. Lines that cannot be read are left to the audit."""
    if not run.audit.exists() or not run.audit.stat().st_size:
        return []
    found = []
    with run.audit.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as lines:
        place = lines.find(_MARK)
        while place >= 0:
            begin, end = lines.rfind(b"\n", 0, place) + 1, lines.find(b"\n", place)
            try:
                entry = from_line(lines[begin:end], run.audit.name).record
            except CorruptFrame:
                entry = None
            if isinstance(entry, DoubtEntry):
                found.append(entry)
            place = lines.find(_MARK, place + 1)
    return found


def doubt_of(doubts: list[DoubtEntry], trajectory: Trajectory, step: Policy) -> str:
    """Return why a sample is in doubt that the step which made the version `step` took; empty if it is not."""
    first = trajectory.policies[0].policy if trajectory.policies else step
    return next(
        (
            each.why
            for each in doubts
            if each.worker_id == trajectory.worker_id and each.since <= first and step <= each.policy
        ),
        "",
    )
