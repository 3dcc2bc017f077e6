"""The gRPC servicer of the coordinator: each method converts the request, calls the writer and converts the answer.

An agent's session is one bidirectional stream whose two directions run concurrently: a reader task hands the agent's
messages to the writer, and the stream's own coroutine sends the session's orders. Whichever ends first ends the
session, and its error becomes the status of the stream. Calls that only read use the writer's current state. No
decision is made here.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from coordinator import convert
from coordinator.doing import doing
from coordinator.events import (
    JobCancelled,
    JobSubmitted,
    MembersChanged,
    RegionJoined,
    RegionOrder,
    RegionOrdered,
    SendRenewed,
    SendRevocations,
)
from coordinator.members.membership import Membership
from coordinator.state import JobRequest, State, find_job
from coordinator.writer import AgentSession, Writer
from periplus.errors import ConfigError, Denied, TimedOut, Unreachable, WireError
from periplus.job.job_file import JobFile
from periplus.net import parties, rpc
from periplus.net.convert import policy_from_pb
from periplus.net.join_token import LIFETIME_S
from periplus.net.parties import Party, PartyKind, Rights
from periplus.net.peers import is_other_machine, leads_nowhere_else, peer_host
from periplus.pb.v1 import control_pb2, control_pb2_grpc
from periplus.publication import JobAuthority
from periplus.values.replica_url import names_region
from periplus.values.task import REGION_NAME, is_path_component
from planner.plan import Plan

HELLO_DEADLINE_S = 10.0
"""Seconds from the opening of a session to its hello; chosen by hand: three intercontinental round trips, and slack."""


MAX_TEXT_BYTES = 1 << 20
"""Largest job file, model configuration or plan that is accepted. All of a region's jobs travel in one message of at
most `rpc.MAX_MESSAGE_BYTES`. A job file has kilobytes, a configuration tens of them. Chosen by hand."""


SESSION_END_S = 10.0
"""Seconds within which the session of a region that is removed must have ended. Chosen by hand."""

MAX_TOKEN_S = 86_400.0
"""Most seconds for which a join token is valid. Chosen by hand."""

MAX_JOB_ID_BYTES = 200
"""Longest id of a job. File names have at most 255 bytes, and agents append up to 30. New ids have at most 70, since
names of jobs have at most 63. Chosen by hand."""


class CoordinatorService(control_pb2_grpc.CoordinatorServicer):
    """Translates between the gRPC protocol and the writer.

    `make_job_id` returns a new id that begins with the job's name. `authority` certifies trainers, and knows the
    secrets of jobs. `membership` is None in a fleet without identities.
    """

    def __init__(
        self,
        writer: Writer,
        heartbeat_s: float,
        version: str,
        make_job_id: Callable[[str], str],
        authority: JobAuthority,
        membership: Membership | None = None,
    ) -> None:
        self._writer = writer
        self._heartbeat_s = heartbeat_s
        self._version = version
        self._make_job_id = make_job_id
        self._authority = authority
        self._membership = membership
        self._sessions: dict[str, AgentSession] = {}

    async def Session(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        """Serve one agent, from its hello to the end of the stream."""
        first = await _first(request_iterator)
        hello, session = convert.hello_from_pb(first.hello), AgentSession()
        if (party := rpc.caller(context)) is not None and party.name != hello.region:
            raise Denied(f"the certificate is of {party}, and the hello says region {hello.region}")
        address = hello.gateway_address  # empty if the agent knows that nobody can dial it
        if address and leads_nowhere_else(address) and is_other_machine(context.peer()):
            raise ConfigError(
                f"the gateway of {hello.region} says that it is reached at {address}, where no other "
                f"machine finds it, but its agent is at {peer_host(context.peer())}; give the agent --listen HOST:PORT "
                "with an address of its network, or --advertise HOST:PORT, or --advertise none if nobody can dial it"
            )
        try:
            await self._writer.apply(RegionJoined(hello, first.sequence), session)
            welcome = control_pb2.Welcome(heartbeat_s=self._heartbeat_s, coordinator_version=self._version)
            await context.write(control_pb2.CoordinatorMessage(epoch=session.epoch, welcome=welcome))
            self._sessions[hello.region] = session
            if self._membership is not None:
                session.put(self._revocations(hello.region, session))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(hello.region, session, request_iterator, context))
                while True:
                    await context.write(convert.order_to_pb(await session.get(), self._authority))
        finally:
            await self._writer.leave(hello.region, session)
            if self._sessions.get(hello.region) is session:
                del self._sessions[hello.region]
            session.over.set()

    async def _read(
        self, region: str, session: AgentSession, messages: AsyncIterator[control_pb2.AgentMessage], context: Any
    ) -> None:
        async for message in messages:
            if message.HasField("renewal") and self._membership is not None:
                certificate = await asyncio.to_thread(
                    self._membership.renew, rpc.shown_certificate(context), message.renewal.request
                )
                session.put(SendRenewed(region=region, epoch=session.epoch, certificate=certificate))
                continue
            await self._writer.apply(convert.agent_event_from_pb(region, message))
        raise Unreachable(f"the agent of {region} ended its session")

    async def SubmitJob(self, request: control_pb2.SubmitJobRequest, context: Any) -> control_pb2.SubmitJobResponse:
        """Validate and submit a job, and return it. A repeated request with the same request id gets the same job."""
        _check_sizes(request)
        # The client has checked the job too, but the coordinator trusts no client's file.
        job = _with_replica_store(JobFile.from_json(request.job_json), self._writer.state)
        if bool(request.resume_from) != request.HasField("resume_policy"):
            raise ConfigError("resume_from and resume_policy go together: a run directory, and the policy found in it")
        if request.resume_job_id and not is_path_component(request.resume_job_id):
            raise ConfigError(f"resume_job_id {request.resume_job_id[:80]!r} is no name of a run's directory")
        if (num_bytes := len(request.resume_job_id.encode())) > MAX_JOB_ID_BYTES:
            raise ConfigError(
                f"resume_job_id {request.resume_job_id[:80]!r}... has {num_bytes} bytes, and at most "
                f"{MAX_JOB_ID_BYTES} fit into the names of files; rename the run's directory"
            )
        if request.plan_json:
            Plan.from_json(request.plan_json)
        # The id is a proposal: the machine ignores it for a repeated request and for a resumed job.
        job_id = self._make_job_id(job.name)
        wanted = JobRequest(
            name=job.name,
            min_regions=job.regions.min,
            job_json=job.to_json(),
            resume_from=request.resume_from,
            resume_policy=policy_from_pb(request.resume_policy) if request.resume_from else None,
            resume_job_id=request.resume_job_id,
            allows_other_problems=request.allows_other_problems,
            model_config=request.model_config,
            model_bytes=request.model_bytes,
            plan_json=request.plan_json,
            max_trainer_restarts=job.failure.max_trainer_restarts,
            max_region_absence_s=job.failure.max_region_absence_s,
            trainer_region=job.regions.trainer or "",
            rollout_regions=job.regions.rollout or (),
            forbidden_regions=job.regions.forbid,
            replicate=job.checkpoint.replicate,
            operator=_operator(context),
        )
        request_id = request.request_id or job_id
        state = await self._writer.apply(JobSubmitted(request_id, job_id, wanted, _actor(context)))
        # The request id leads to the job also if an earlier call with the same id made it.
        return control_pb2.SubmitJobResponse(job=convert.job_to_pb(state.jobs[state.requests[request_id]]))

    async def GetJob(self, request: control_pb2.GetJobRequest, context: Any) -> control_pb2.Job:
        """Return one job with its file and plan. Raises: NotFound, or Conflict for an ambiguous prefix of an id."""
        state = self._writer.state
        job = find_job(state, request.job_id)
        return convert.job_to_pb(job, doing(state, job, self._writer.now_s()))

    async def ListJobs(self, request: control_pb2.ListJobsRequest, context: Any) -> control_pb2.ListJobsResponse:
        """Return all jobs without their files and plans, which would not fit into one message."""
        state = self._writer.state
        jobs = [convert.job_to_pb(job, doing(state, job, self._writer.now_s())) for job in state.jobs.values()]
        for job in jobs:
            job.ClearField("job_json")
            job.ClearField("plan_json")
        return control_pb2.ListJobsResponse(jobs=jobs)

    async def CancelJob(self, request: control_pb2.CancelJobRequest, context: Any) -> control_pb2.Job:
        """Ask for the job's cancellation and return the job. Raises: NotFound, Conflict, StateError if it has ended."""
        state = await self._writer.apply(JobCancelled(request.job_id, _actor(context)))
        return convert.job_to_pb(find_job(state, request.job_id))

    async def WatchJob(  # type: ignore[override]
        self, request: control_pb2.WatchJobRequest, context: Any
    ) -> None:
        """Stream the job's events after `after_sequence`: until the job has ended, or only those of the past."""
        job_id = find_job(self._writer.state, request.job_id).job_id
        following = self._writer.follow(job_id, request.after_sequence, past_only=request.past_only)
        async with aclosing(following) as events:
            async for event in events:
                await context.write(convert.job_event_to_pb(job_id, event))

    async def WatchEvents(  # type: ignore[override]
        self, request: control_pb2.WatchEventsRequest, context: Any
    ) -> None:
        """Stream the fleet's events above a number: those that there are, or with `follow` later ones too."""
        following = self._writer.follow_events(
            request.after_number, job_id=request.job_id, region=request.region, past_only=not request.follow
        )
        async with aclosing(following) as events:
            async for event in events:
                await context.write(convert.fleet_event_to_pb(event))

    async def OrderRegion(self, request: control_pb2.OrderRegionRequest, context: Any) -> control_pb2.Fleet:
        """Cordon, uncordon, drain, remove or profile a region, and return the fleet.

        Raises: NotFound, Conflict, ConfigError.
        """
        if request.order not in set(RegionOrder):
            raise ConfigError(f"{request.order[:80]!r} is no order to a region; give one of {', '.join(RegionOrder)}")
        order = RegionOrder(request.order)
        if order is RegionOrder.PROFILE:
            JobFile.from_json(request.job_json)  # it must be one
        if order is RegionOrder.REMOVE and self._membership is not None:
            _check_name(request.region)
            await self._revoke(parties.region(request.region), context)
        ordered = RegionOrdered(request.region, order, _actor(context), request.job_json, request.model_config)
        return convert.fleet_to_pb(await self._writer.apply(ordered))

    async def GetFleet(self, request: control_pb2.GetFleetRequest, context: Any) -> control_pb2.Fleet:
        """Return all regions and links."""
        return convert.fleet_to_pb(self._writer.state)

    # ---- members --------------------------------------------------------------------------------------------------

    async def CreateToken(
        self, request: control_pb2.CreateTokenRequest, context: Any
    ) -> control_pb2.CertificateResponse:
        """Return the certificate of a new join token. Raises: ConfigError, Denied."""
        membership, party = self._members(), _new_member(request)
        lifetime_s = request.lifetime_s or LIFETIME_S
        if not 0 < lifetime_s <= MAX_TOKEN_S:
            raise ConfigError(f"a join token is valid for up to {MAX_TOKEN_S / 3600:.0f} hours, not {lifetime_s} s")
        certificate = membership.token_certificate(party, rpc.shown_certificate(context), request.request, lifetime_s)
        await self._note(f"a join token for {party}, valid for {lifetime_s:.0f} s", party, context)
        return control_pb2.CertificateResponse(certificate=certificate)

    async def Join(self, request: control_pb2.JoinRequest, context: Any) -> control_pb2.CertificateResponse:
        """Return the certificate of a new member. Raises: Denied, also if the token was used before."""
        membership, token = self._members(), rpc.caller(context)
        assert token is not None, "a coordinator with members answers only callers with certificates"
        certificate = await asyncio.to_thread(membership.join, rpc.shown_certificate(context), request.request)
        party = parties.party_of(token.name)
        await self._note(f"{party} joined", party, context)
        return control_pb2.CertificateResponse(certificate=certificate)

    async def Renew(self, request: control_pb2.JoinRequest, context: Any) -> control_pb2.CertificateResponse:
        """Return the next certificate of the operator who calls. Raises: Denied."""
        certificate = self._members().renew(rpc.shown_certificate(context), request.request)
        return control_pb2.CertificateResponse(certificate=certificate)

    async def RemoveOperator(self, request: control_pb2.RemoveOperatorRequest, context: Any) -> control_pb2.Fleet:
        """Refuse the certificates that an operator has until now, and return the fleet. Raises: ConfigError."""
        _check_name(request.operator)
        for rights in Rights:
            await self._revoke(parties.operator(request.operator, rights), context)
        return convert.fleet_to_pb(self._writer.state)

    def _members(self) -> Membership:
        if self._membership is None:
            raise ConfigError("this coordinator runs with --plaintext, and has no identities")
        return self._membership

    async def _revoke(self, party: Party, context: Any) -> None:
        """Refuse a party's certificates, tell all gateways, and end the session of a region."""
        membership = self._members()
        await asyncio.to_thread(membership.revoke, party)
        for region, session in self._sessions.items():
            session.put(self._revocations(region, session))
        await self._note(f"the certificates of {party} are revoked", party, context)
        if party.kind is PartyKind.REGION and (ended := self._sessions.pop(party.name, None)) is not None:
            ended.end(Denied(f"{party} was removed from the fleet"))
            async with asyncio.timeout(SESSION_END_S):
                await ended.over.wait()
        membership.calls.end_refused(membership.admit)

    def _revocations(self, region: str, session: AgentSession) -> SendRevocations:
        return SendRevocations(region=region, epoch=session.epoch, before_s=self._members().revocations)

    async def _note(self, text: str, party: Party, context: Any) -> None:
        region = party.name if party.kind is PartyKind.REGION else ""
        await self._writer.apply(MembersChanged(text, _actor(context), region))


def _new_member(request: control_pb2.CreateTokenRequest) -> Party:
    if bool(request.region) == bool(request.operator):
        raise ConfigError("a join token is for one region or for one operator")
    name = request.region or request.operator
    _check_name(name)
    if request.region:
        return parties.region(name)
    if request.rights not in set(Rights):
        raise ConfigError(f"{request.rights[:80]!r} are no rights; give one of {', '.join(Rights)}")
    return parties.operator(name, Rights(request.rights))


def _check_name(name: str) -> None:
    if not re.fullmatch(REGION_NAME, name):
        raise ConfigError(f"{name[:80]!r} is no name: give up to 63 letters, digits and :._-")


def _actor(context: Any) -> str:
    party = rpc.caller(context)
    if party is None:
        return f"operator at {peer_host(context.peer())}"
    return str(party) if party.kind is not PartyKind.JOIN else str(parties.party_of(party.name))


def _operator(context: Any) -> str:
    party = rpc.caller(context)
    return party.name if party is not None and party.kind is PartyKind.OPERATOR else ""


def _with_replica_store(job: JobFile, state: State) -> JobFile:
    """Return the job with the store's URL in place of a region that it names for replicas. Raises: ConfigError."""
    name = job.checkpoint.replicate
    if not names_region(name):
        return job
    stores = {each: region.hello.inventory.replica_store for each, region in state.regions.items()}
    if not stores.get(name):
        lacks = "a region without a store for replicas" if name in stores else "no region of this fleet"
        having = ", ".join(sorted(each for each, store in stores.items() if store)) or "none"
        raise ConfigError(
            f"checkpoint.replicate is {name}, {lacks} (regions with one: {having}); start an agent with "
            "--replica-store URL, or give a URL here"
        )
    checkpoint = job.checkpoint.model_copy(update={"replicate": stores[name]})
    return job.model_copy(update={"checkpoint": checkpoint})


def _check_sizes(request: control_pb2.SubmitJobRequest) -> None:
    texts = {"job file": request.job_json, "model's config.json": request.model_config, "plan": request.plan_json}
    for what, text in texts.items():
        if (num_bytes := len(text.encode())) > MAX_TEXT_BYTES:
            raise ConfigError(
                f"the {what} has {num_bytes:,} bytes, and a coordinator takes at most {MAX_TEXT_BYTES:,}; make it "
                "smaller: data, for example, belongs into files that the job names"
            )


async def _first(messages: Any) -> control_pb2.AgentMessage:
    try:
        async with asyncio.timeout(HELLO_DEADLINE_S):
            message = await anext(aiter(messages))
    except TimeoutError as error:
        raise TimedOut(f"no hello within {HELLO_DEADLINE_S:.0f} s of opening the session") from error
    except StopAsyncIteration as error:
        raise WireError("the session ended before its hello") from error
    if not isinstance(message, control_pb2.AgentMessage) or not message.HasField("hello"):
        raise WireError("the first message of a session must be a hello")
    return message
