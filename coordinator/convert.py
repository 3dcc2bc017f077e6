"""Converts between the messages of `control.proto` and the coordinator's own values.

Everything that an agent sends is checked here, so that the rest of the coordinator gets only valid values. A function
raises WireError for a message that breaks the protocol, unless its docstring says otherwise.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from coordinator.events import (
    AgentEvent,
    CertificateRequested,
    HeartbeatSeen,
    InventoryChanged,
    LinkMeasured,
    Order,
    ProbeFailed,
    RefuseCertificate,
    SendCertificate,
    SendDesired,
    SendListen,
    SendProbe,
    SendProfile,
    SendRenewed,
    SendRevocations,
    Stamp,
    StepRecorded,
    TaskReported,
)
from coordinator.joblog import JobEvent
from coordinator.state import (
    Hello,
    Job,
    JobState,
    MeasuredLink,
    Pair,
    RegionState,
    State,
    ready_regions,
)
from coordinator.store import StoredEvent
from periplus.errors import LINE_CHARACTERS, ConfigError, WireError
from periplus.net.convert import (
    certificate_to_pb,
    inventory_from_pb,
    inventory_to_pb,
    pace_to_pb,
    record_from_pb,
    run_files_from_pb,
    run_files_to_pb,
)
from periplus.pb.v1 import common_pb2, control_pb2
from periplus.publication import JobAuthority
from periplus.values.machine import MachineDevices
from periplus.values.record import Record
from periplus.values.task import PUBLIC_KEY_BYTES, REGION_NAME, AssignedTask, FailureCause, Role, TaskReport, TaskState

TASK_STATE_TO_PB = {
    TaskState.STARTING: control_pb2.TASK_STATE_STARTING,
    TaskState.RUNNING: control_pb2.TASK_STATE_RUNNING,
    TaskState.SUCCEEDED: control_pb2.TASK_STATE_SUCCEEDED,
    TaskState.FAILED: control_pb2.TASK_STATE_FAILED,
    TaskState.STOPPED: control_pb2.TASK_STATE_STOPPED,
}
TASK_STATE_FROM_PB = {number: state for state, number in TASK_STATE_TO_PB.items()}
JOB_STATE_TO_PB = {
    JobState.PENDING: control_pb2.JOB_STATE_PENDING,
    JobState.PLANNED: control_pb2.JOB_STATE_PLANNED,
    JobState.STARTING: control_pb2.JOB_STATE_STARTING,
    JobState.RUNNING: control_pb2.JOB_STATE_RUNNING,
    JobState.SUCCEEDED: control_pb2.JOB_STATE_SUCCEEDED,
    JobState.FAILED: control_pb2.JOB_STATE_FAILED,
    JobState.CANCELLED: control_pb2.JOB_STATE_CANCELLED,
}
JOB_STATE_FROM_PB = {number: state for state, number in JOB_STATE_TO_PB.items()}
_ROLE_TO_PB = {Role.TRAINER: control_pb2.ROLE_TRAINER, Role.ROLLOUT: control_pb2.ROLE_ROLLOUT}

# ---- from agents -----------------------------------------------------------------------------------------------------


def hello_from_pb(message: control_pb2.Hello) -> Hello:
    """Return an agent's hello. Raises: ConfigError for an invalid region name, WireError if a field is missing."""
    # Region names become parts of file names and of task ids.
    if not re.fullmatch(REGION_NAME, message.region):
        raise ConfigError(
            f"region name {message.region[:80]!r} is not usable; use up to 63 letters, digits and : . _ - "
            "that begin with a letter or digit"
        )
    if not message.boot_id:
        raise WireError(f"the hello of region {message.region} lacks its boot_id")
    return Hello(
        region=message.region,
        boot_id=message.boot_id,
        gateway_address=message.gateway_address,
        inventory=inventory_from_pb(message.inventory),
        agent_version=message.agent_version,
        tasks=tuple(map(report_from_pb, message.tasks)),
    )


def agent_event_from_pb(region: str, message: control_pb2.AgentMessage) -> AgentEvent:
    """Return the event of a message that the agent of `region` sent after its hello."""
    stamp = Stamp(region, message.epoch, message.sequence)
    match message.WhichOneof("body"):
        case "heartbeat":
            jobs = {job.job_id: _sent_from_pb(job.traffic) for job in message.heartbeat.jobs}
            return HeartbeatSeen(stamp, _sent_from_pb(message.heartbeat.traffic), jobs)
        case "link":
            return _measurement_from_pb(stamp, message.link)
        case "inventory":
            return InventoryChanged(stamp, inventory_from_pb(message.inventory))
        case "task":
            return TaskReported(stamp, report_from_pb(message.task))
        case "step":
            return StepRecorded(stamp, message.step.job_id, record_from_pb(message.step))
        case "certify":
            return _certificate_request_from_pb(stamp, message.certify)
        case body:
            raise WireError(f"region {region} sent {body or 'an empty message'} within its session")


def _sent_from_pb(traffic: Iterable[control_pb2.LinkTraffic]) -> dict[str, int]:
    return {link.dst_region: link.sent_bytes for link in traffic}


def _measurement_from_pb(stamp: Stamp, link: control_pb2.LinkMeasurement) -> LinkMeasured | ProbeFailed:
    if link.src_region != stamp.region:
        raise WireError(f"region {stamp.region} reported a link that starts in {link.src_region!r}")
    if link.error:
        return ProbeFailed(stamp=stamp, dst_region=link.dst_region, why=link.error[:LINE_CHARACTERS])
    if not (0 <= link.rtt_s < math.inf and 0 < link.throughput_bits_per_s < math.inf):
        raise WireError(
            f"region {stamp.region} reported an impossible measurement to {link.dst_region}: a round trip of "
            f"{link.rtt_s} s and {link.throughput_bits_per_s} bit/s"
        )
    return LinkMeasured(
        stamp=stamp, dst_region=link.dst_region, rtt_s=link.rtt_s, throughput_bits_per_s=link.throughput_bits_per_s
    )


def _certificate_request_from_pb(stamp: Stamp, request: control_pb2.CertificateRequest) -> CertificateRequested:
    if len(request.public_key) != PUBLIC_KEY_BYTES:
        raise WireError(
            f"region {stamp.region} asked for a certificate of a key of {len(request.public_key)} bytes for job "
            f"{request.job_id[:80]}; an Ed25519 key has {PUBLIC_KEY_BYTES}"
        )
    return CertificateRequested(stamp=stamp, job_id=request.job_id, fork=request.fork, public_key=request.public_key)


def report_from_pb(message: control_pb2.TaskReport) -> TaskReport:
    """Return an agent's report of one task."""
    if message.state not in TASK_STATE_FROM_PB:
        raise WireError(f"task {message.task_id} is reported in the unknown state {message.state}")
    try:
        cause = FailureCause(message.cause or FailureCause.PASSING)
    except ValueError as error:
        raise WireError(
            f"task {message.task_id} is reported to fail for the unknown cause {message.cause!r}"
        ) from error
    return TaskReport(
        task_id=message.task_id,
        job_id=message.job_id,
        state=TASK_STATE_FROM_PB[message.state],
        message=message.message,
        restarts=message.restarts,
        fork=message.fork,
        files=run_files_from_pb(message.files) if message.HasField("files") else None,
        cause=cause,
    )


# ---- to agents -------------------------------------------------------------------------------------------------------


def order_to_pb(order: Order, authority: JobAuthority) -> control_pb2.CoordinatorMessage:
    """Return the message that carries an order to an agent. Never raises.

    `authority` signs certificates, where its refusal is sent as the answer, and knows the secrets of jobs.
    """
    match order:
        case SendDesired():
            desired = control_pb2.DesiredTasks(
                revision=order.revision, tasks=map(_task_to_pb, order.tasks), jobs=_desired_jobs(order.tasks, authority)
            )
            return control_pb2.CoordinatorMessage(epoch=order.epoch, desired=desired)
        case SendProbe():
            probe = control_pb2.ProbeOrder(
                dst_region=order.dst_region, gateway_address=order.gateway_address, payload_bytes=order.payload_bytes
            )
            return control_pb2.CoordinatorMessage(epoch=order.epoch, probe=probe)
        case SendListen():
            listen = control_pb2.ListenOrder(relay_region=order.relay_region, relay_address=order.relay_address)
            return control_pb2.CoordinatorMessage(epoch=order.epoch, listen=listen)
        case SendProfile():
            profile = control_pb2.ProfileOrder(job_json=order.job_json, model_config=order.model_config)
            return control_pb2.CoordinatorMessage(epoch=order.epoch, profile=profile)
        case SendRenewed():
            renewed = control_pb2.CertificateResponse(certificate=order.certificate)
            return control_pb2.CoordinatorMessage(epoch=order.epoch, renewed=renewed)
        case SendRevocations():
            revocations = control_pb2.Revocations(before_s=order.before_s)
            return control_pb2.CoordinatorMessage(epoch=order.epoch, revocations=revocations)
        # The certificate is signed only here, so that the state machine needs no private key.
        case SendCertificate():
            return control_pb2.CoordinatorMessage(epoch=order.epoch, certificate=_certified_to_pb(order, authority))
        case RefuseCertificate():
            answer = control_pb2.CertificateAnswer(job_id=order.job_id, fork=order.fork, refused=order.reason)
            return control_pb2.CoordinatorMessage(epoch=order.epoch, certificate=answer)


def _certified_to_pb(order: SendCertificate, authority: JobAuthority) -> control_pb2.CertificateAnswer:
    answer = control_pb2.CertificateAnswer(job_id=order.job_id, fork=order.fork)
    try:
        answer.certificate.CopyFrom(certificate_to_pb(authority.certify(order.job_id, order.fork, order.public_key)))
    # A key for which anybody could sign: the trainer gets a refusal, and the session of its region goes on.
    except ValueError as error:
        answer.refused = f"the trainer's key cannot be certified: {error}"
    return answer


def _desired_jobs(tasks: Sequence[AssignedTask], authority: JobAuthority) -> Iterator[control_pb2.DesiredJob]:
    for job_id in dict.fromkeys(task.job_id for task in tasks):
        of_job = [task for task in tasks if task.job_id == job_id]
        yield control_pb2.DesiredJob(
            job_id=job_id,
            job_json=of_job[0].job_json,
            plan_json=of_job[0].plan_json,
            model_config=max(task.model_config for task in of_job),  # only a trainer has one
            authority_key=bytes.fromhex(of_job[0].authority_key),
            secret=authority.secret_of(job_id),
            operator=of_job[0].operator,
        )


def _task_to_pb(task: AssignedTask) -> control_pb2.Task:
    return control_pb2.Task(
        task_id=task.task_id,
        job_id=task.job_id,
        role=_ROLE_TO_PB[task.role],
        trainer_region=task.trainer_region,
        trainer_gateway=task.trainer_gateway,
        fork=task.fork,
        resume_from=task.resume_from,
        stopping=task.stopping,
        allows_other_problems=task.allows_other_problems,
        machine=task.machine,
        devices=task.devices,
        others=map(_others_to_pb, task.others),
        engine=task.engine,
        tensor=task.tensor,
        data=task.data,
        pace=pace_to_pb(task.pace),
        is_restart=task.is_restart,
        by_turns=task.by_turns,
    )


def _others_to_pb(place: MachineDevices) -> control_pb2.MachineDevices:
    return control_pb2.MachineDevices(machine=place.machine, devices=place.devices)


# ---- to operators ----------------------------------------------------------------------------------------------------


def job_to_pb(job: Job, doing: str = "") -> control_pb2.Job:
    """Return all that an operator may know of a job. `doing` says what the job does at this moment. Never raises."""
    policy = common_pb2.Policy(fork=job.policy.fork, version=job.policy.version) if job.policy else None
    return control_pb2.Job(
        job_id=job.job_id,
        name=job.request.name,
        state=JOB_STATE_TO_PB[job.state],
        reason=job.reason,
        doing=doing,
        notice=job.notice,
        plan_json=job.plan_json,
        job_json=job.request.job_json,
        submitted_at_s=job.submitted_at_s,
        policy=policy,
        files=run_files_to_pb(job.files),
        replica=job.replica_url,
        measured=job.measured,
        traffic=[
            control_pb2.PairTraffic(src_region=src, dst_region=dst, sent_bytes=num_bytes)
            for (src, dst), num_bytes in sorted(job.sent_bytes.items())
        ],
        processes=[
            control_pb2.JobProcess(
                task_id=task_id,
                role=_ROLE_TO_PB[status.role],
                region=status.region,
                machine=status.machine,
                devices=status.devices,
                others=map(_others_to_pb, status.others),
                device=status.process.device,
                engine=status.process.engine,
                tensor=status.process.tensor,
                data=status.process.data,
                usd_per_hour=status.process.usd_per_hour,
                state=TASK_STATE_TO_PB[status.report.state] if status.report else control_pb2.TASK_STATE_UNSPECIFIED,
            )
            for task_id, status in job.tasks.items()
        ],
    )


def job_event_to_pb(job_id: str, event: JobEvent) -> control_pb2.JobEvent:
    """Return one event of a job for its watchers. Never raises."""
    message = control_pb2.JobEvent(sequence=event.sequence, time_s=event.time_s)
    match event.news:
        case Job() as job:
            message.job.CopyFrom(job_to_pb(job))
        case Record() as record:
            message.step.CopyFrom(_record_to_pb(job_id, record))
        case State() as state:
            message.fleet.CopyFrom(_job_fleet_to_pb(state, state.jobs[job_id]))
    return message


def _record_to_pb(job_id: str, record: Record) -> control_pb2.StepRecord:
    return control_pb2.StepRecord(
        job_id=job_id,
        kind=record.kind.value,
        policy=common_pb2.Policy(fork=record.policy.fork, version=record.policy.version),
        time_s=record.time_s,
        values=record.values,
        staleness_tokens=record.staleness_tokens,
        text=record.text,
    )


def fleet_event_to_pb(stored: StoredEvent) -> control_pb2.FleetEvent:
    """Return one event of the fleet. Never raises."""
    event = stored.event
    return control_pb2.FleetEvent(
        number=stored.number,
        time_s=stored.time_s,
        kind=event.kind,
        text=event.text,
        job_id=event.job_id,
        region=event.region,
        actor=event.actor,
    )


def fleet_to_pb(state: State) -> control_pb2.Fleet:
    """Return all regions, and every link that was probed or that carried bytes. Never raises."""
    sent_bytes = {(src, dst): n for src, region in state.regions.items() for dst, n in region.sent_bytes.items()}
    return _fleet_to_pb(state, sent_bytes)


def _job_fleet_to_pb(state: State, job: Job) -> control_pb2.Fleet:
    """Return all regions and links, with the bytes that this one job sent over each link."""
    return _fleet_to_pb(state, job.sent_bytes)


def _fleet_to_pb(state: State, sent_bytes: Mapping[Pair, int]) -> control_pb2.Fleet:
    return control_pb2.Fleet(
        regions=[_region_to_pb(region) for _, region in sorted(state.regions.items())],
        links=[
            _link_to_pb(state, pair, sent_bytes.get(pair, 0))
            for pair in sorted({*state.links, *state.failed_links, *sent_bytes})
        ],
    )


def _region_to_pb(region: RegionState) -> control_pb2.Region:
    hello = region.hello
    return control_pb2.Region(
        name=hello.region,
        state="ready" if region.connected else "disconnected",
        gateway_address=hello.gateway_address,
        inventory=inventory_to_pb(hello.inventory),
        tasks=[
            control_pb2.TaskReport(
                task_id=report.task_id,
                job_id=report.job_id,
                state=TASK_STATE_TO_PB[report.state],
                message=report.message,
                restarts=report.restarts,
                fork=report.fork,
                files=run_files_to_pb(report.files),
            )
            for _, report in sorted(region.tasks.items())
        ],
        last_seen_s=region.last_seen_s,
        mode=region.mode,
        relay=region.relay,
    )


def _link_to_pb(state: State, pair: Pair, sent_bytes: int) -> control_pb2.Link:
    link = state.links.get(pair) or MeasuredLink(rtt_s=0.0, throughput_bits_per_s=0.0, measured_at_s=0.0)
    failed = state.failed_links.get(pair)
    return control_pb2.Link(
        src_region=pair[0],
        dst_region=pair[1],
        rtt_s=link.rtt_s,
        throughput_bits_per_s=link.throughput_bits_per_s,
        sent_bytes=sent_bytes,
        measured_at_s=link.measured_at_s,
        failure=failed.why if failed else "",
        failed_since_s=failed.since_s if failed else 0.0,
        is_stale=not ready_regions(state).issuperset(pair),
    )
