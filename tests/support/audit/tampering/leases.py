"""Changes of the lines about leases, their losses and the verdicts on their results."""

from dataclasses import replace

from periplus.audit import records
from periplus.audit.findings import Code
from periplus.audit.records import AdmissionVerdict
from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose
from tests.support.audit.forger import Forger
from tests.support.audit.tampering.edits import (
    STEP,
    Tampering,
    at,
    first_trained,
    first_trained_result,
    found,
    trained_on,
)


def leases_of_a_trained_group_are_removed(forger: Forger) -> None:
    group = trained_on(forger)[0].group
    forger.entries = [
        e for e in forger.entries if not (isinstance(e.record, records.LeaseEntry) and e.record.group == group)
    ]


def a_lease_line_is_missing(forger: Forger) -> None:
    del forger.entries[at(forger, records.LeaseEntry, group=0, nth=1)]


def a_result_is_moved_before_its_lease(forger: Forger) -> None:
    lease = at(forger, records.LeaseEntry, lease_id=first_trained_result(forger).lease_id)
    forger.entries.insert(lease, forger.entries.pop(first_trained(forger)))


def a_loss_is_removed(forger: Forger) -> None:
    del forger.entries[at(forger, records.LostEntry)]


def a_loss_is_invented(forger: Forger) -> None:
    forger.insert(20, records.LostEntry(lease_id=4000, group=0, sample=0, worker_id="w", why="expired"))


def a_loss_is_of_another_workers_lease(forger: Forger) -> None:
    forger.edit(at(forger, records.LostEntry), worker_id="rollout-eu-9")


def a_refused_sample_is_said_to_be_accepted(forger: Forger) -> None:
    forger.edit(
        at(forger, records.ResultEntry, verdict=AdmissionVerdict.REFUSED, why="late"),
        verdict=AdmissionVerdict.ACCEPTED,
        why="",
    )


def an_accepted_sample_is_said_to_be_a_duplicate(forger: Forger) -> None:
    forger.edit(first_trained(forger), verdict=AdmissionVerdict.DUPLICATE, why="duplicate")


def an_abandoned_sample_is_said_to_be_accepted(forger: Forger) -> None:
    forger.edit(at(forger, records.ResultEntry, verdict=AdmissionVerdict.ABANDONED), verdict=AdmissionVerdict.ACCEPTED)


def a_group_answers_two_problems(forger: Forger) -> None:
    forger.edit(at(forger, records.LeaseEntry, group=0, sample=1), item=55)


def a_trained_group_is_leased_again(forger: Forger) -> None:
    lease = found(forger, records.LeaseEntry, group=0, sample=0)
    forger.insert(at(forger, records.ConsumeEntry, policy=STEP), replace(lease, lease_id=999))


def a_lease_number_is_used_twice(forger: Forger) -> None:
    forger.edit(at(forger, records.LeaseEntry, nth=6), lease_id=1)


def the_region_of_a_lease_is_changed(forger: Forger) -> None:
    forger.edit(at(forger, records.LeaseEntry, nth=9), region="us-east")


def the_region_of_a_result_is_changed(forger: Forger) -> None:
    forger.edit(first_trained(forger), region="us-east")


def a_lease_starts_at_another_version(forger: Forger) -> None:
    forger.edit(at(forger, records.LeaseEntry, nth=30), start_at=Policy(0, 0))


def a_lease_must_be_consumed_later(forger: Forger) -> None:
    forger.edit(at(forger, records.LeaseEntry, nth=30), consume_by_version=9)


def a_lease_is_for_versions_long_gone(forger: Forger) -> None:
    index = at(forger, records.LeaseEntry, purpose=Purpose.TRAIN, start_at=Policy(0, 3))
    forger.edit(index, start_at=Policy(0, 0), consume_by_version=1)


def a_lease_starts_after_its_tokens_were_sampled(forger: Forger) -> None:
    index = at(forger, records.LeaseEntry, purpose=Purpose.TRAIN, start_at=Policy(0, 0))
    forger.edit(index, start_at=Policy(0, 1), consume_by_version=2)


TAMPERINGS = (
    Tampering(a_lease_line_is_missing, (Code.LEASE_MISSING,)),
    Tampering(a_result_is_moved_before_its_lease, (Code.RESULT_WITHOUT_LEASE,)),
    Tampering(leases_of_a_trained_group_are_removed, (Code.RESULT_WITHOUT_LEASE,)),
    Tampering(a_loss_is_removed, (Code.UNACCOUNTED,)),
    Tampering(a_loss_is_invented, (Code.LOST_CONTRADICTS,)),
    Tampering(a_loss_is_of_another_workers_lease, (Code.LOST_CONTRADICTS,)),
    Tampering(a_refused_sample_is_said_to_be_accepted, (Code.ACCEPTED_TWICE,)),
    Tampering(an_accepted_sample_is_said_to_be_a_duplicate, (Code.DUPLICATE_OF_NOTHING,)),
    Tampering(an_abandoned_sample_is_said_to_be_accepted, (Code.ACCEPTED_UNFIT,)),
    Tampering(the_region_of_a_lease_is_changed, (Code.LEASE_CONTRADICTS,)),
    Tampering(the_region_of_a_result_is_changed, (Code.LEASE_CONTRADICTS,)),
    Tampering(a_lease_starts_at_another_version, (Code.LEASE_CONTRADICTS,)),
    Tampering(a_lease_must_be_consumed_later, (Code.LEASE_CONTRADICTS,)),
    Tampering(a_lease_is_for_versions_long_gone, (Code.LEASE_CONTRADICTS,)),
    Tampering(a_lease_starts_after_its_tokens_were_sampled, (Code.ACCEPTED_UNFIT,)),
    Tampering(a_group_answers_two_problems, (Code.GROUP_MIXED,)),
    Tampering(a_trained_group_is_leased_again, (Code.LEASE_AFTER_END,)),
    Tampering(a_lease_number_is_used_twice, (Code.LEASE_REPEATED,)),
)
