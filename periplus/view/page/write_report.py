"""Writer of a run's `report.html`, from the files in its directory.

It works for every run: finished, failed, killed or still going. A missing file leaves its part of the page empty,
because a trainer may be killed before it writes the file.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from periplus.config import loading
from periplus.errors import ConfigError, NotFound
from periplus.job.run_directory import RunDirectory, write_atomically
from periplus.job.samples.gallery import reported_gallery
from periplus.values.record import Record, RecordKind
from periplus.view.page.run_page import render_report
from periplus.view.page.samples_section import samples_section
from periplus.view.recording import read_fleet
from periplus.view.state import RecordSeen, ViewState, fold


def write_report(run: RunDirectory) -> Path:
    """Write the page and return its path.

    Raises: NotFound if the directory does not exist or holds no run, ConfigError for a file that cannot be parsed.
    """
    if not run.root.is_dir():
        raise NotFound(f"{run.root} does not exist; give the directory of a run, such as runs/JOB")
    job = loading.read_yaml(run.config) if run.config.exists() else {}
    plan = _json_object(run.plan)
    records = run.records() if run.metrics.exists() else ()
    if not job and not records:
        raise NotFound(f"{run.root} has neither config.yaml nor metrics.jsonl; is it the directory of a run?")
    fleet = read_fleet(run)
    summary = _summary(run, job, plan, records)
    # The last snapshot has the final counters of all links.
    links = fleet[-1][1].links if fleet else ()
    gallery = reported_gallery(run)
    samples = samples_section(gallery) if gallery else ""
    write_atomically(run.report, render_report(job, plan, records, summary, links, _ending(run, records), samples))
    return run.report


def _summary(
    run: RunDirectory, job: Mapping[str, Any], plan: Mapping[str, Any], records: Sequence[Record]
) -> Mapping[str, object]:
    """Return the written summary of a finished run; for another one, what its records add up to."""
    # A summary file alone may be of an earlier end: a resumed run has records after it.
    if records and records[-1].kind is RecordKind.SUMMARY and run.summary.exists():
        return _json_object(run.summary)
    state = ViewState()
    for record in records:
        state = fold(state, RecordSeen(record))
    # Without an end there is no accuracy after it.
    before = [seen.value for seen in state.accuracies if seen.label == "before"]
    return {
        "steps": state.step,
        "accuracy_before": before[0] if before else None,
        "staleness_bound": job.get("staleness"),
        "staleness_max": state.staleness_max,
        "staleness_violations": state.staleness_violations,
        "weight_digest_mismatches": state.weight_digest_mismatches,
        "regions": list(dict.fromkeys(assignment["region"] for assignment in plan.get("assignments", ()))),
    }


def _ending(run: RunDirectory, records: Sequence[Record]) -> str:
    """Return how the last trainer ended, or an empty text if it succeeded.

    The summary record tells of success. Any other end is in outcome.json, which the trainer's agent writes.
    """
    outcome = _json_object(run.outcome)
    newest_fork = max((record.policy.fork for record in records), default=0)
    is_summed_up = bool(records) and records[-1].kind is RecordKind.SUMMARY
    # The newest fork succeeded, unless an outcome of a newer fork says otherwise.
    if is_summed_up and outcome.get("fork", 0) <= newest_fork:
        return ""
    # The outcome is of an earlier fork: the newest one still runs, or its agent died with it.
    if not outcome or outcome.get("fork", 0) < newest_fork:
        return "not ended, as far as this directory tells"
    message = outcome.get("message")
    return f"{outcome.get('state')}: {message}" if message else str(outcome.get("state"))


def _json_object(path: Path) -> Mapping[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} cannot be read ({why}); remove it to do without") from error
    return tree if isinstance(tree, dict) else {}
