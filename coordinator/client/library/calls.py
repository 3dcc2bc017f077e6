"""The calls of a script to a coordinator: each blocks its thread until the answer, an error or a deadline.

They are those of `coordinator/client/connection.py` without an event loop. gRPC shares its poller among all event loops
of a process, which a library must leave to its caller.
"""

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc

from coordinator.client.connection import CONNECT_DEADLINE_S
from coordinator.members.access import Access
from periplus.errors import StateError, TimedOut, Unreachable
from periplus.net import rpc
from periplus.net.tokens import metadata_of
from periplus.pb.v1 import control_pb2, control_pb2_grpc


class BlockingCoordinator:
    """The calls to one coordinator. Each raises the coordinator's own PeriplusError, Unreachable, TimedOut,
    or StateError once the connection is closed.
    """

    def __init__(self, address: str, channel: grpc.Channel, token: str = "") -> None:
        self.address = address
        self._channel = channel
        self._metadata = metadata_of(token)
        self._is_closed = False
        self._stub: Any = control_pb2_grpc.CoordinatorStub(channel)

    def submit(self, request: control_pb2.SubmitJobRequest) -> control_pb2.Job:
        """Submit a job and return it. A lost answer is asked for once more; the request's id prevents a second job."""
        response: control_pb2.SubmitJobResponse
        try:
            response = self._call("SubmitJob", request)
        except (TimedOut, Unreachable):
            response = self._call("SubmitJob", request)
        return response.job

    def job(self, job_id: str) -> control_pb2.Job:
        """Return one job. `job_id` may be a unique prefix of the id."""
        job: control_pb2.Job = self._call("GetJob", control_pb2.GetJobRequest(job_id=job_id))
        return job

    def jobs(self) -> list[control_pb2.Job]:
        """Return all jobs, without their job files and plans."""
        response: control_pb2.ListJobsResponse = self._call("ListJobs", control_pb2.ListJobsRequest())
        return list(response.jobs)

    def cancel(self, job_id: str) -> control_pb2.Job:
        """Ask for the job's cancellation and return the job."""
        job: control_pb2.Job = self._call("CancelJob", control_pb2.CancelJobRequest(job_id=job_id))
        return job

    def watch(
        self, job_id: str, *, past_only: bool = False, timeout_s: float | None = None
    ) -> Iterator[control_pb2.JobEvent]:
        """Yield the job's events, past ones first, until the job has ended or, with `past_only`, those of the past.

        Raises: TimedOut if the stream lasts for more than `timeout_s`.
        """
        self._check_open()
        with rpc.blocking_remote_errors(self.address):
            stream = self._stub.WatchJob(
                control_pb2.WatchJobRequest(job_id=job_id, past_only=past_only),
                timeout=timeout_s,
                metadata=self._metadata,
            )
            try:
                yield from stream
            finally:
                # Whoever stops iterating early, as by Ctrl-C, ends the stream and nothing else.
                stream.cancel()

    def close(self) -> None:
        """Close the connection. A stream that is open ends with Unreachable; later calls raise StateError."""
        self._is_closed = True
        self._channel.close()

    def _call(self, method: str, request: Any) -> Any:
        self._check_open()
        with rpc.blocking_remote_errors(self.address):
            return getattr(self._stub, method)(request, timeout=rpc.CALL_DEADLINE_S, metadata=self._metadata)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StateError(
                f"the connection to {self.address} is closed; use its jobs inside the `with` block, or connect again"
            )


def answering(address: str, access: Access) -> BlockingCoordinator | None:
    """Return the calls to a coordinator that answers within CONNECT_DEADLINE_S, or None if none does."""
    channel = rpc.blocking_channel(address, access.secured)
    try:
        if _is_connected(channel):
            return BlockingCoordinator(address, channel, access.token)
    except BaseException:
        channel.close()
        raise
    channel.close()
    return None


def _is_connected(channel: grpc.Channel) -> bool:
    """Return whether the first attempt to connect succeeds. A refused connection is not tried again."""
    decided = threading.Event()
    found: list[grpc.ChannelConnectivity] = []

    def changed(state: grpc.ChannelConnectivity) -> None:
        if state in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
            found.append(state)
            decided.set()

    channel.subscribe(changed, try_to_connect=True)
    decided.wait(CONNECT_DEADLINE_S)
    with suppress(ValueError):
        channel.unsubscribe(changed)
    return found[:1] == [grpc.ChannelConnectivity.READY]
