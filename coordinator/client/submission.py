"""Makes the request that submits a job: the job itself, the checkpoint that it resumes, and what its model is.

The model's `config.json` and size travel with the job, since the coordinator that plans it need not have the model.
"""

import json
from pathlib import Path

from periplus.config import loading
from periplus.config.file_kinds import need_kind
from periplus.job.inputs import CONFIG_FILE, adapter_base, model_folder
from periplus.job.job_file import BUILTIN_PREFIX, JobFile
from periplus.job.resumption import ResumePoint
from periplus.pb.v1 import common_pb2, control_pb2
from planner.files.hub_checkpoint import published_bytes
from planner.plan import Plan
from planner.plan_of_placement import without_question


def plan_by_hand(path: Path) -> Plan:
    """Return the plan of a file, JSON or YAML, as it stands there. Raises: ConfigError if it is not a plan."""
    tree = loading.read_yaml(path)
    need_kind(tree, str(path), ("plan",))
    return Plan.from_tree(tree, str(path))


def submission(
    job: JobFile, request_id: str, checkpoint: ResumePoint | None = None, plan: Plan | None = None
) -> control_pb2.SubmitJobRequest:
    """Return the request that submits a job which `check_job` has checked. `plan` is to run in place of a search.

    The coordinator answers a second request with the same id with the job of the first. Raises: ConfigError if the
    model's files have changed since the check.
    """
    request = control_pb2.SubmitJobRequest(request_id=request_id, job_json=job.to_json())
    if not job.model.path.startswith(BUILTIN_PREFIX):
        folder = model_folder(job)
        folder = adapter_base(folder) or folder
        tree = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        request.model_config = json.dumps(tree, separators=(",", ":"))
        request.model_bytes = published_bytes(str(folder)) or 0
    if plan is not None:
        request.plan_json = without_question(plan).to_json()
    if checkpoint is not None:
        policy = checkpoint.resume_policy
        request.resume_from = str(checkpoint.run_dir)
        request.resume_policy.CopyFrom(common_pb2.Policy(fork=policy.fork, version=policy.version))
        request.resume_job_id = checkpoint.job_id
        request.allows_other_problems = checkpoint.allows_other_problems
    return request
