"""A connection to a coordinator, and what it streams as the view's events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from coordinator.convert import JOB_STATE_FROM_PB, TASK_STATE_FROM_PB, record_from_pb
from coordinator.state import INFEASIBLE_PREFIX, JobState
from periplus.errors import PeriplusError, PlanInfeasible, TimedOut, Unreachable
from periplus.net import rpc
from periplus.pb.v1 import control_pb2, control_pb2_grpc
from periplus.view.state import Event, FleetSeen, JobChanged, LinkSeen, RecordSeen, RegionSeen, TaskRole, TaskSeen

CONNECT_DEADLINE_S = 5.0
"""One round trip around the world is 0.3 s; a person waits no longer for a wrong address."""


@dataclass(frozen=True, slots=True)
class Coordinator:
    """Calls to one coordinator. Every method raises a PeriplusError: the coordinator's own, Unreachable or TimedOut."""

    address: str
    _stub: Any

    async def submit(self, request: control_pb2.SubmitJobRequest) -> control_pb2.Job:
        """Once, however often it is sent: the request's id sees to that, so a lost answer is asked for again."""
        response: control_pb2.SubmitJobResponse
        try:
            response = await self._call("SubmitJob", request)
        except (TimedOut, Unreachable):
            response = await self._call("SubmitJob", request)
        return response.job

    async def job(self, job_id: str) -> control_pb2.Job:
        """`job_id` may be a unique prefix."""
        job: control_pb2.Job = await self._call("GetJob", control_pb2.GetJobRequest(job_id=job_id))
        return job

    async def jobs(self) -> list[control_pb2.Job]:
        """Without their files and plans."""
        response: control_pb2.ListJobsResponse = await self._call("ListJobs", control_pb2.ListJobsRequest())
        return list(response.jobs)

    async def cancel(self, job_id: str) -> control_pb2.Job:
        job: control_pb2.Job = await self._call("CancelJob", control_pb2.CancelJobRequest(job_id=job_id))
        return job

    async def fleet(self) -> control_pb2.Fleet:
        fleet: control_pb2.Fleet = await self._call("GetFleet", control_pb2.GetFleetRequest())
        return fleet

    async def watch(self, job_id: str, after_sequence: int = 0) -> AsyncIterator[control_pb2.JobEvent]:
        """The job's events until it has ended."""
        with rpc.remote_errors(self.address):
            request = control_pb2.WatchJobRequest(job_id=job_id, after_sequence=after_sequence)
            async for event in self._stub.WatchJob(request):
                yield event

    async def _call(self, method: str, request: Any) -> Any:
        with rpc.remote_errors(self.address):
            return await getattr(self._stub, method)(request, timeout=rpc.CALL_DEADLINE_S)


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[Coordinator]:
    """A coordinator that answers. Raises: Unreachable, within CONNECT_DEADLINE_S."""
    async with rpc.channel(address) as channel:
        if not await _connected(channel):
            raise Unreachable(
                f"no coordinator answers at {address}; start one with `periplus coordinator`, or name another with "
                "--coordinator or PERIPLUS_COORDINATOR"
            )
        yield Coordinator(address, control_pb2_grpc.CoordinatorStub(channel))


async def _connected(channel: grpc.aio.Channel) -> bool:
    """Whether the first attempt succeeds: what refuses now is not worth waiting for."""
    state = channel.get_state(try_to_connect=True)
    try:
        async with asyncio.timeout(CONNECT_DEADLINE_S):
            while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        return False
    return state is grpc.ChannelConnectivity.READY


def view_event(event: control_pb2.JobEvent) -> Event | None:
    """What the view shows of an event; None for a kind that this version does not know."""
    match event.WhichOneof("body"):
        case "job":
            job = event.job
            return JobChanged(
                job_id=job.job_id,
                name=job.name,
                state=job_state(job),
                reason=job.reason,
                submitted_at_s=job.submitted_at_s,
                at_s=event.time_s,
            )
        case "step":
            return RecordSeen(record_from_pb(event.step), event.time_s)
        case "fleet":
            return FleetSeen(
                regions=tuple(map(_region, event.fleet.regions)),
                links=tuple(map(_link, event.fleet.links)),
                at_s=event.time_s,
            )
    return None


def job_state(job: control_pb2.Job) -> str:
    """The lower-case name of its state."""
    state = JOB_STATE_FROM_PB.get(job.state)
    return state.value if state else "unknown"


def task_state(task: control_pb2.TaskReport) -> str:
    """The lower-case name of its state."""
    state = TASK_STATE_FROM_PB.get(task.state)
    return state.value if state else "unknown"


def _region(region: control_pb2.Region) -> RegionSeen:
    return RegionSeen(
        name=region.name,
        state=region.state,
        num_cores=region.inventory.num_cores,
        memory_bytes=region.inventory.memory_bytes,
        tasks=tuple(map(_task, region.tasks)),
    )


def _task(task: control_pb2.TaskReport) -> TaskSeen:
    return TaskSeen(task_id=task.task_id, role=_role(task.task_id), state=task_state(task), restarts=task.restarts)


def _role(task_id: str) -> TaskRole:
    kind = task_id.rpartition("/")[2].partition("-")[0]
    return TaskRole(kind) if kind in set(TaskRole) else TaskRole.UNKNOWN


def _link(link: control_pb2.Link) -> LinkSeen:
    return LinkSeen(
        src=link.src_region,
        dst=link.dst_region,
        rtt_s=link.rtt_s,
        throughput_bits_per_s=link.throughput_bits_per_s,
        sent_bytes=link.sent_bytes,
    )


def raise_outcome(ended: control_pb2.Job) -> None:
    """What a job that ended means to who waited for it. Raises: PlanInfeasible, PeriplusError; nothing on success."""
    state = job_state(ended)
    if state == JobState.SUCCEEDED:
        return
    why = f"job {ended.job_id} {'was cancelled' if state == JobState.CANCELLED else state}: {ended.reason}"
    if ended.reason.startswith(INFEASIBLE_PREFIX):
        raise PlanInfeasible(why)
    raise PeriplusError(why)
