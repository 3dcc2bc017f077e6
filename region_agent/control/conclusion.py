"""What an agent leaves in a run's directory when its trainer has ended, however that was: the outcome and the report.

A trainer that was killed can write neither. Nothing here is needed to go on with the run, so whatever fails is logged.
"""

import json
import logging

from periplus.config import yaml_text
from periplus.errors import NotFound
from periplus.job.resumption import newest_checkpoint
from periplus.job.run_directory import RunDirectory, write_atomically
from periplus.process.telemetry import event
from periplus.values.policy import Policy
from periplus.values.task import TaskReport
from periplus.view.page.write_report import write_report
from region_agent.control.reconcile import LocalTask

log = logging.getLogger(__name__)


def conclude(run: RunDirectory, task: LocalTask, report: TaskReport) -> tuple[Policy | None, str]:
    """Write outcome and report of a run whose trainer, started for `task`, has ended.

    Returns the newest checkpoint and the report's path, None and empty if there are none. Blocks while it reads the
    run's records: for a thread.
    """
    page = ""
    try:
        if not run.config.exists():  # the trainer ended before it could say what it was to do
            write_atomically(run.config, yaml_text.dump(json.loads(task.job_json)))
            write_atomically(run.plan, task.plan_json or "{}")
        outcome = {"fork": report.fork, "state": report.state.value, "message": report.message}
        write_atomically(run.outcome, json.dumps(outcome) + "\n")
        page = str(write_report(run))
    except Exception as error:  # the files of a run may hold anything, and the agent has other work
        event(log, logging.WARNING, "report_not_written", job=report.job_id, why=error)
    try:
        return newest_checkpoint(run.root).policy, page
    except NotFound:
        return None, page
    except Exception as error:  # as above
        event(log, logging.WARNING, "checkpoint_unreadable", job=report.job_id, why=error)
        return None, page
