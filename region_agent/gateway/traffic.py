"""Counters of the bytes between this gateway and each other region, in total and per job, as they go over the wire.

The sender counts. For a job the receiver counts, too, so that the home gateway knows both directions.

A message of n bytes also costs gRPC's five-byte prefix, and HTTP/2's nine-byte header per 16 KiB frame. Connection
upkeep (pings, window updates) is left out. The WAN emulator's own count of a training run agrees within one percent.
"""

from collections import Counter
from dataclasses import dataclass, field

GRPC_PREFIX_BYTES = 5
"""Bytes that gRPC puts before each message."""
HTTP2_HEADER_BYTES = 9
"""Bytes of an HTTP/2 frame's header."""
HTTP2_FRAME_BYTES = 16 << 10
"""Largest payload of an HTTP/2 frame by default."""

MAX_JOBS = 64
"""Number of jobs whose counters are kept, the newest ones. A region runs one job at a time. The counters of ended jobs
are kept for a coordinator that was away at their end, and every heartbeat carries all of them. Chosen by hand.
"""


def wire_bytes(message_bytes: int) -> int:
    """Return the bytes that a message of this serialized size takes on a gRPC stream."""
    framed = message_bytes + GRPC_PREFIX_BYTES
    return framed + HTTP2_HEADER_BYTES * -(-framed // HTTP2_FRAME_BYTES)


@dataclass(frozen=True, slots=True)
class JobTraffic:
    """Bytes of one job: sent to each other region, and received from each."""

    sent_bytes: Counter[str] = field(default_factory=Counter)
    received_bytes: Counter[str] = field(default_factory=Counter)


class Traffic:
    """Counters since the agent's start."""

    def __init__(self) -> None:
        self.sent_bytes: Counter[str] = Counter()
        self.jobs: dict[str, JobTraffic] = {}

    def sent(self, dst_region: str, message_bytes: int, job_id: str = "") -> None:
        """Count a message that was written to `dst_region`.

        `job_id` is empty for what belongs to no job, such as a probe.
        """
        num_bytes = wire_bytes(message_bytes)
        self.sent_bytes[dst_region] += num_bytes
        if job_id:
            self._job(job_id).sent_bytes[dst_region] += num_bytes

    def received(self, src_region: str, message_bytes: int, job_id: str) -> None:
        """Count a message of the job that was read from `src_region`."""
        self._job(job_id).received_bytes[src_region] += wire_bytes(message_bytes)

    def pairs(self, job_id: str, region: str) -> dict[tuple[str, str], int]:
        """Return the job's bytes by (source, destination), in both directions, as seen from this gateway's `region`."""
        job = self.jobs.get(job_id, JobTraffic())
        sent = {(region, dst): num_bytes for dst, num_bytes in job.sent_bytes.items()}
        return sent | {(src, region): num_bytes for src, num_bytes in job.received_bytes.items()}

    def _job(self, job_id: str) -> JobTraffic:
        if job_id not in self.jobs:
            self.jobs[job_id] = JobTraffic()
            while len(self.jobs) > MAX_JOBS:
                del self.jobs[next(iter(self.jobs))]
        return self.jobs[job_id]
