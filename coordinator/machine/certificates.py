"""Decides which trainer gets a certificate of the job authority, from the coordinator's state alone; others sign it.

A certificate says that the holder of a key is the trainer of this fork of this job. Every gateway and worker of the job
accepts weights that are signed with that key. The rules therefore are:

- Only the region in which the job's trainer is placed gets a certificate, for the job's current fork, while it lives.
- A fork has one key. A repeated request with the same key gets the same answer, because a session may end between
  request and answer. Another key is refused, because workers could otherwise follow two trainers of one fork.
"""

from coordinator.events import CertificateRequested, RefuseCertificate, SendCertificate
from coordinator.state import State


def answer_to(state: State, request: CertificateRequested) -> SendCertificate | RefuseCertificate:
    """Return the answer to the region that asked. The caller must store a certified key as the job's `trainer_key`."""
    region, epoch = request.stamp.region, request.stamp.epoch
    if reason := _refusal_reason(state, request):
        return RefuseCertificate(region=region, epoch=epoch, job_id=request.job_id, fork=request.fork, reason=reason)
    return SendCertificate(
        region=region, epoch=epoch, job_id=request.job_id, fork=request.fork, public_key=request.public_key
    )


def _refusal_reason(state: State, request: CertificateRequested) -> str:
    """Return the reason to refuse the request, or an empty string if there is none."""
    job, region = state.jobs.get(request.job_id), request.stamp.region
    if job is None:
        return (
            f"this coordinator knows no job {request.job_id!r}; a restarted coordinator forgets earlier jobs: resume "
            "it with `periplus job submit --resume RUN_DIR`"
        )
    if job.ended:
        return f"job {job.job_id} has {job.state}; its trainer has nothing to publish"
    # Another region's agent must not get a key certified for a job whose trainer it does not run.
    if job.trainer is None or job.trainer.region != region:
        where = job.trainer.region if job.trainer else "no region yet"
        return f"the trainer of job {job.job_id} is placed in {where}, not in {region}"
    # The trainer of an earlier fork may still run after the job was resumed.
    if job.fork != request.fork:
        return f"job {job.job_id} is at fork {job.fork}; a trainer of fork {request.fork} is not followed"
    # An empty key means that this fork has none yet; the same key again is a repeated request.
    if job.trainer_key not in ("", request.public_key.hex()):
        return (
            f"fork {job.fork} of job {job.job_id} has a trainer with another key already; a second one needs a new "
            "fork: resume the job"
        )
    return ""
