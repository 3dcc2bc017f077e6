"""Conversion between protobuf messages and the agent's values, for the session with the coordinator."""

from collections.abc import Mapping

from periplus.errors import PeriplusError, WireError
from periplus.job.job_file import JobFile
from periplus.net.convert import pace_from_pb, run_files_to_pb
from periplus.pb.v1 import control_pb2
from periplus.spool.format import Durability
from periplus.values.machine import MachineDevices
from periplus.values.task import PUBLIC_KEY_BYTES, Role, TaskReport, TaskState, is_path_component
from region_agent.control.reconcile import LocalTask
from region_agent.gateway.traffic import Traffic

_ROLE = {control_pb2.ROLE_TRAINER: Role.TRAINER, control_pb2.ROLE_ROLLOUT: Role.ROLLOUT}
_STATE = {
    TaskState.STARTING: control_pb2.TASK_STATE_STARTING,
    TaskState.RUNNING: control_pb2.TASK_STATE_RUNNING,
    TaskState.SUCCEEDED: control_pb2.TASK_STATE_SUCCEEDED,
    TaskState.FAILED: control_pb2.TASK_STATE_FAILED,
    TaskState.STOPPED: control_pb2.TASK_STATE_STOPPED,
}


def tasks_from_pb(message: control_pb2.DesiredTasks) -> tuple[tuple[LocalTask, ...], tuple[TaskReport, ...]]:
    """Convert the desired tasks, and return those that can be read, and a report of failure of each other one.

    A task cannot be read if its job is invalid, or its id no name of a directory, and if a coordinator of another
    version sends an unknown role, a task without its job, or a key of the wrong length. It costs no other job.
    """
    jobs = {job.job_id: job for job in message.jobs}
    tasks, failed = [], []
    for task in message.tasks:
        try:
            tasks.append(_task(task, jobs.get(task.job_id)))
        except PeriplusError as error:
            why = f"its region cannot read the order: {error}"
            failed.append(
                TaskReport(
                    task_id=task.task_id,
                    job_id=task.job_id,
                    state=TaskState.FAILED,
                    message=why,
                    restarts=0,
                    fork=task.fork,
                )
            )
    return tuple(tasks), tuple(failed)


def _task(message: control_pb2.Task, of_job: control_pb2.DesiredJob | None) -> LocalTask:
    if not is_path_component(message.job_id):
        raise WireError(f"the job id {message.job_id[:80]!r} is not one component of a path; who sends such orders?")
    if message.role not in _ROLE:
        raise WireError(
            f"task {message.task_id} has the role {message.role}; is the coordinator newer than this agent?"
        )
    if of_job is None or not of_job.secret:
        raise WireError(
            f"task {message.task_id} came without its job or the job's secret; has the coordinator another version?"
        )
    if len(of_job.authority_key) != PUBLIC_KEY_BYTES:
        raise WireError(
            f"task {message.task_id} names a job authority's key of {len(of_job.authority_key)} bytes instead of "
            f"{PUBLIC_KEY_BYTES}; is the coordinator older than this agent?"
        )
    # What the agent itself needs of the job is read once here, so that nothing else in it reads job files.
    job = JobFile.from_json(of_job.job_json)
    return LocalTask(
        task_id=message.task_id,
        job_id=message.job_id,
        role=_ROLE[message.role],
        job_json=of_job.job_json,
        trainer_region=message.trainer_region,
        trainer_gateway=message.trainer_gateway,
        fork=message.fork,
        resume_from=message.resume_from,
        plan_json=of_job.plan_json,
        output_dir=job.output.dir,
        max_restarts=job.failure.max_worker_restarts,
        durability=Durability(job.network.durability),
        spool_bytes=job.network.spool_mib << 20,
        chain_versions=job.network.chain_versions,
        replicate=job.checkpoint.replicate,
        stopping=message.stopping,
        authority_key=of_job.authority_key.hex(),
        job_secret=of_job.secret,
        allows_other_problems=message.allows_other_problems,
        machine=message.machine,
        devices=tuple(message.devices),
        others=tuple(MachineDevices(each.machine, tuple(each.devices)) for each in message.others),
        model_config=of_job.model_config if _ROLE[message.role] is Role.TRAINER else "",
        engine=message.engine or job.engine.name,
        tensor=message.tensor,
        data=message.data,
        pace=pace_from_pb(message.pace) if message.HasField("pace") else None,
        is_restart=message.is_restart,
        by_turns=message.by_turns,
        operator=of_job.operator,
        has_own_code=job.has_own_code,
        secrets=tuple(sorted(job.secrets.items())),
    )


def report_to_pb(report: TaskReport) -> control_pb2.TaskReport:
    """Convert the state of one task."""
    return control_pb2.TaskReport(
        task_id=report.task_id,
        job_id=report.job_id,
        state=_STATE[report.state],
        message=report.message,
        restarts=report.restarts,
        fork=report.fork,
        files=run_files_to_pb(report.files),
        cause=report.cause,
    )


def heartbeat_to_pb(traffic: Traffic) -> control_pb2.Heartbeat:
    """Return a heartbeat with the gateway's counters of sent bytes, in total and for each job."""
    jobs = [
        control_pb2.JobTraffic(job_id=job_id, traffic=_counters_to_pb(job.sent_bytes))
        for job_id, job in traffic.jobs.items()
    ]
    return control_pb2.Heartbeat(traffic=_counters_to_pb(traffic.sent_bytes), jobs=jobs)


def _counters_to_pb(sent_bytes: Mapping[str, int]) -> list[control_pb2.LinkTraffic]:
    return [control_pb2.LinkTraffic(dst_region=dst, sent_bytes=num) for dst, num in sorted(sent_bytes.items())]
