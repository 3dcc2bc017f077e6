"""Writes the outcome and the report into a run's directory when its trainer has ended, for whatever reason.

A trainer that was killed can write neither. Nothing here is needed to resume the run, so every failure is only logged.
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
    """Write the outcome and the report of a run whose trainer, started for `task`, has ended.

    Return the policy of the newest checkpoint (None if there is none) and the path of the report (empty if it was not
    written). It blocks while it reads the run's records: call it in a thread.
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
