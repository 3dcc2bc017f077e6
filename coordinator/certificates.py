"""Which trainer the job authority vouches for: decided from the state alone, and signed elsewhere.

A certificate says that the holder of a key is the trainer of this fork of this job; with it, weights are accepted by
every gateway and worker of the job. So: only the region in which the job's trainer is placed gets one, for the job's
present fork and while the job lives; and a fork has one key. The same key gets the same answer again, since a session
may end between question and answer; another key is refused, since two trainers of one fork could both be followed.
"""

from coordinator.events import CertificateRequested, RefuseCertificate, SendCertificate
from coordinator.state import State


def answer_to(state: State, request: CertificateRequested) -> SendCertificate | RefuseCertificate:
    """What the region that asked is told; a certificate that is sent must be noted in the job."""
    region, epoch = request.stamp.region, request.stamp.epoch
    if reason := _why_not(state, request):
        return RefuseCertificate(region=region, epoch=epoch, job_id=request.job_id, fork=request.fork, reason=reason)
    return SendCertificate(
        region=region, epoch=epoch, job_id=request.job_id, fork=request.fork, public_key=request.public_key
    )


def _why_not(state: State, request: CertificateRequested) -> str:
    """Empty if nothing speaks against it."""
    job, region = state.jobs.get(request.job_id), request.stamp.region
    if job is None:
        return (
            f"no job {request.job_id!r} here; a coordinator that was started again knows none from before: resume it "
            "with `periplus job submit --resume RUN_DIR`"
        )
    if job.ended:
        return f"job {job.job_id} has {job.state}; its trainer has nothing to publish"
    if job.trainer is None or job.trainer.region != region:
        where = job.trainer.region if job.trainer else "no region yet"
        return f"the trainer of job {job.job_id} is placed in {where}, not in {region}"
    if job.fork != request.fork:
        return f"job {job.job_id} is at fork {job.fork}; a trainer of fork {request.fork} is not followed"
    if job.trainer_key not in (b"", request.public_key):
        return (
            f"fork {job.fork} of job {job.job_id} has a trainer with another key already; a second one needs a new "
            "fork: resume the job"
        )
    return ""
