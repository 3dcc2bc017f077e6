"""Calls a coordinator over gRPC, and converts the job events that it streams into events of the live view.

Every call has a deadline, and every error is a PeriplusError. `raise_outcome` turns the end of a job into an exception
for commands that waited for it.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from coordinator.convert import JOB_STATE_FROM_PB, TASK_STATE_FROM_PB
from coordinator.events import RegionOrder
from coordinator.members.access import NO_ACCESS, Access
from coordinator.state import INFEASIBLE_PREFIX, JobState
from periplus import clock
from periplus.errors import Denied, PeriplusError, PlanInfeasible, TimedOut, Unreachable
from periplus.net import rpc
from periplus.net.certificates import Identity, new_key, signing_request
from periplus.net.convert import record_from_pb
from periplus.net.joining import server_certificate
from periplus.net.tokens import metadata_of
from periplus.pb.v1 import control_pb2, control_pb2_grpc
from periplus.view.state import Event, FleetSeen, JobChanged, LinkSeen, RecordSeen, RegionSeen, TaskRole, TaskSeen

CONNECT_DEADLINE_S = 5.0
"""Seconds to wait for a connection; chosen by hand: many intercontinental round trips of 0.3 s, and a short wait."""


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The calls to one coordinator. Each raises the coordinator's own PeriplusError, Unreachable or TimedOut."""

    address: str
    _stub: Any
    _metadata: tuple[tuple[str, str], ...] = ()

    async def submit(self, request: control_pb2.SubmitJobRequest) -> control_pb2.Job:
        """Submit a job and return it. A lost answer is asked for once more; the request's id prevents a second job."""
        response: control_pb2.SubmitJobResponse
        try:
            response = await self._call("SubmitJob", request)
        except (TimedOut, Unreachable):
            response = await self._call("SubmitJob", request)
        return response.job

    async def job(self, job_id: str) -> control_pb2.Job:
        """Return one job. `job_id` may be a unique prefix of the id."""
        job: control_pb2.Job = await self._call("GetJob", control_pb2.GetJobRequest(job_id=job_id))
        return job

    async def jobs(self) -> list[control_pb2.Job]:
        """Return all jobs, without their job files and plans."""
        response: control_pb2.ListJobsResponse = await self._call("ListJobs", control_pb2.ListJobsRequest())
        return list(response.jobs)

    async def cancel(self, job_id: str) -> control_pb2.Job:
        """Ask for the job's cancellation and return the job. `job_id` may be a unique prefix of the id."""
        job: control_pb2.Job = await self._call("CancelJob", control_pb2.CancelJobRequest(job_id=job_id))
        return job

    async def fleet(self) -> control_pb2.Fleet:
        """Return all regions and links."""
        fleet: control_pb2.Fleet = await self._call("GetFleet", control_pb2.GetFleetRequest())
        return fleet

    async def order_region(self, region: str, order: str) -> control_pb2.Fleet:
        """Cordon, uncordon, drain or remove a region, and return the fleet."""
        request = control_pb2.OrderRegionRequest(region=region, order=order)
        fleet: control_pb2.Fleet = await self._call("OrderRegion", request)
        return fleet

    async def profile_region(self, region: str, job_json: str, model_config: str) -> None:
        """Have a region's machine measured for a job's model. It returns before that has begun."""
        request = control_pb2.OrderRegionRequest(
            region=region, order=RegionOrder.PROFILE, job_json=job_json, model_config=model_config
        )
        await self._call("OrderRegion", request)

    async def create_token(self, region: str, operator: str, rights: str, lifetime_s: float, request: bytes) -> bytes:
        """Return the certificate (PEM) of a join token for a region or an operator, for the key of a request."""
        asked = control_pb2.CreateTokenRequest(
            region=region, operator=operator, rights=rights, lifetime_s=lifetime_s, request=request
        )
        answer: control_pb2.CertificateResponse = await self._call("CreateToken", asked)
        return answer.certificate

    async def renew(self, request: bytes) -> bytes:
        """Return the next certificate (PEM) of the operator who calls, for the key of a request."""
        answer: control_pb2.CertificateResponse = await self._call("Renew", control_pb2.JoinRequest(request=request))
        return answer.certificate

    async def remove_operator(self, name: str) -> None:
        """Have the certificates of an operator refused."""
        await self._call("RemoveOperator", control_pb2.RemoveOperatorRequest(operator=name))

    async def watch(self, job_id: str, after_sequence: int = 0) -> AsyncIterator[control_pb2.JobEvent]:
        """Yield the job's events after a sequence number, until the job has ended."""
        with rpc.remote_errors(self.address):
            request = control_pb2.WatchJobRequest(job_id=job_id, after_sequence=after_sequence)
            async for event in self._stub.WatchJob(request, metadata=self._metadata):
                yield event

    async def events(self, job_id: str, region: str, *, follow: bool) -> AsyncIterator[control_pb2.FleetEvent]:
        """Yield the fleet's events, of one job or region if one is given: those of the past, or later ones too."""
        with rpc.remote_errors(self.address):
            request = control_pb2.WatchEventsRequest(job_id=job_id, region=region, follow=follow)
            async for event in self._stub.WatchEvents(request, metadata=self._metadata):
                yield event

    async def _call(self, method: str, request: Any) -> Any:
        with rpc.remote_errors(self.address):
            return await getattr(self._stub, method)(request, timeout=rpc.CALL_DEADLINE_S, metadata=self._metadata)


@asynccontextmanager
async def connect(address: str, access: Access = NO_ACCESS) -> AsyncIterator[Coordinator]:
    """Connect to a coordinator that answers. An operator's identity whose time has come is renewed on the way.

    Raises: Unreachable if none answers within CONNECT_DEADLINE_S.
    """
    async with rpc.channel(address, access.secured) as channel:
        if not await _connected(channel):
            raise await asyncio.to_thread(no_connection, address, access)
        remote = Coordinator(address, control_pb2_grpc.CoordinatorStub(channel), metadata_of(access.token))
        if access.secured is not None and access.folder is not None:
            await _renewed(remote, access.secured.identity, access.folder)
        yield remote


def no_connection(address: str, access: Access) -> PeriplusError:
    """Return why a coordinator could not be connected to, after a look at what is there."""
    try:
        server_certificate(address)
    except Unreachable:
        return Unreachable(
            f"no coordinator answers at {address}; start one with `periplus up`, which runs a fleet on this "
            "machine, or with `periplus coordinator`, or name another with --coordinator or PERIPLUS_COORDINATOR"
        )
    if access.secured is None:
        return Denied(
            f"the coordinator at {address} answers only members of its fleet; become one with `periplus login TOKEN`, "
            "whose token another operator makes with `periplus token create --operator NAME`"
        )
    identity = access.secured.identity
    if clock.unix_s() >= identity.expires_at_s:
        return Denied(f"the identity of {identity.party} has ended; ask for a new token, and `periplus login` again")
    return Denied(
        f"the coordinator at {address} is not of the fleet of your identity, {identity.party}: if the fleet was made "
        "anew, `periplus login` with a token of the new one"
    )


async def _renewed(remote: Coordinator, identity: Identity, folder: Path) -> None:
    if clock.unix_s() >= identity.renew_at_s:
        key = new_key()
        certificate = await remote.renew(signing_request(key))
        Identity(key=key, certificate=certificate, authority=identity.authority).save(folder)


async def _connected(channel: grpc.aio.Channel) -> bool:
    """Return whether the first attempt to connect succeeds. A refused connection is not tried again."""
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
    """Return the view's event for a job event, or None for a kind that this version does not know."""
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
                plan=json.loads(job.plan_json) if job.plan_json else {},
            )
        case "step":
            return RecordSeen(record_from_pb(event.step), event.time_s)
        case "fleet":
            return FleetSeen(
                regions=tuple(map(_region, event.fleet.regions)),
                links=tuple(map(_link, event.fleet.links)),
                at_s=event.time_s,
            )
    # A newer coordinator may send kinds of event that this version cannot show.
    return None


def job_state(job: control_pb2.Job) -> str:
    """Return the lower-case name of the job's state, or "unknown" for a state that this version does not know."""
    state = JOB_STATE_FROM_PB.get(job.state)
    return state.value if state else "unknown"


def task_state(task: control_pb2.TaskReport) -> str:
    """Return the lower-case name of the task's state, or "unknown" for a state that this version does not know."""
    return named_state(task.state)


def named_state(state: control_pb2.TaskState.ValueType) -> str:
    """Return the lower-case name of a task's state, or "unknown" for a state that this version does not know."""
    known = TASK_STATE_FROM_PB.get(state)
    return known.value if known else "unknown"


def _region(region: control_pb2.Region) -> RegionSeen:
    return RegionSeen(
        name=region.name,
        state=region.state,
        num_cores=sum(each.num_cores for each in region.inventory.machines if each.has_launcher),
        memory_bytes=sum(each.memory_bytes for each in region.inventory.machines if each.has_launcher),
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
    """Raise the error with which a command that waited for this job should end; return if the job succeeded.

    Raises: PlanInfeasible if no placement satisfies the job, PeriplusError if it failed or was cancelled.
    """
    state = job_state(ended)
    if state == JobState.SUCCEEDED:
        return
    why = f"job {ended.job_id} {'was cancelled' if state == JobState.CANCELLED else state}: {ended.reason}"
    if ended.reason.startswith(INFEASIBLE_PREFIX):
        raise PlanInfeasible(why)
    raise PeriplusError(why)
