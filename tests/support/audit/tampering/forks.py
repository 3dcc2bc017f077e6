"""Changes of the starts, ends and settings of a run's forks."""

import json

from periplus.audit import records
from periplus.audit.findings import Code
from periplus.values.policy import Policy
from tests.support.audit.forger import Forger
from tests.support.audit.tampering.edits import Tampering, at


def the_bound_changes_midway(forger: Forger) -> None:
    forger.edit(at(forger, records.OpenEntry, fork=1), bound=5)


def the_problems_change_unsaid(forger: Forger) -> None:
    forger.edit(at(forger, records.OpenEntry, fork=1), problems=bytes([1]) * 32)


def the_bound_is_another_than_the_jobs(forger: Forger) -> None:
    for index in forger.indices(lambda r: isinstance(r, records.OpenEntry)):
        forger.edit(index, bound=5)


def a_fork_has_the_wrong_parent(forger: Forger) -> None:
    forger.edit(at(forger, records.OpenEntry, fork=2), parent=Policy(0, 2))


def a_fork_starts_from_what_is_no_checkpoint(forger: Forger) -> None:
    forger.edit(at(forger, records.OpenEntry, fork=2), parent=Policy(1, 3))


def a_fork_is_taken_out(forger: Forger) -> None:
    first, last = at(forger, records.OpenEntry, fork=1), at(forger, records.OpenEntry, fork=2)
    del forger.entries[first:last]


def a_fork_is_said_not_to_be_one(forger: Forger) -> None:
    del forger.entries[at(forger, records.OpenEntry, fork=1)]


def the_start_is_missing(forger: Forger) -> None:
    del forger.entries[0]


def the_end_is_cut_off_behind_the_last_checkpoint(forger: Forger) -> None:
    del forger.entries[at(forger, records.CheckpointEntry, policy=Policy(2, 6)) + 1 :]


def the_end_is_cut_off_before_the_last_checkpoint(forger: Forger) -> None:
    del forger.entries[at(forger, records.OpenEntry, fork=2) + 3 :]


def another_setting_of_the_job(forger: Forger) -> None:
    config = json.loads((forger.root / "config.yaml").read_text())
    (forger.root / "config.yaml").write_text(json.dumps(config | {"optimizer": {"lr": 1.0}}))


TAMPERINGS = (
    Tampering(the_bound_changes_midway, (Code.SETTINGS_CHANGED,)),
    Tampering(the_problems_change_unsaid, (Code.SETTINGS_CHANGED,)),
    Tampering(the_bound_is_another_than_the_jobs, (Code.SETTINGS_CHANGED,)),
    Tampering(a_fork_has_the_wrong_parent, (Code.VERSION_GAP,)),
    Tampering(a_fork_starts_from_what_is_no_checkpoint, (Code.PARENT_UNKNOWN,)),
    Tampering(a_fork_is_taken_out, (Code.PARENT_UNKNOWN,)),
    Tampering(a_fork_is_said_not_to_be_one, (Code.VERSION_GAP,)),
    Tampering(the_start_is_missing, (Code.NOT_OPENED,)),
    Tampering(the_end_is_cut_off_behind_the_last_checkpoint, (Code.FRAME_UNJUDGED,)),
    Tampering(
        the_end_is_cut_off_behind_the_last_checkpoint, (Code.METRICS_AHEAD,), "the_end_is_cut_off_and_metrics_tell"
    ),
    Tampering(the_end_is_cut_off_before_the_last_checkpoint, (Code.MANIFEST_UNRECORDED, Code.JOURNAL_TRUNCATED)),
    Tampering(another_setting_of_the_job, (Code.SETTINGS_CHANGED,)),
)
