"""Changes of the lines about groups that were trained on, evaluated or dropped."""

from collections.abc import Callable
from dataclasses import replace

from periplus.audit import records
from periplus.audit.findings import Code
from periplus.values.policy import Policy
from tests.support.audit.forger import Forger
from tests.support.audit.tampering.edits import Tampering, at, found, train_on, trained_on


def a_group_is_trained_on_again(forger: Forger) -> None:
    again = trained_on(forger, Policy(2, 4))[:2]
    train_on(forger, (*again, *trained_on(forger, Policy(2, 6))[2:]), Policy(2, 6))


def a_sample_is_trained_on_again(forger: Forger) -> None:
    samples = trained_on(forger)
    train_on(forger, (*samples, samples[0]))


def a_batch_is_removed(forger: Forger) -> None:
    del forger.entries[at(forger, records.ConsumeEntry, policy=Policy(2, 5))]


def the_last_batch_of_a_dead_branch_is_removed(forger: Forger) -> None:
    del forger.entries[at(forger, records.ConsumeEntry, policy=Policy(0, 3))]


def two_batches_change_places(forger: Forger) -> None:
    one, other = (at(forger, records.ConsumeEntry, policy=Policy(0, version)) for version in (0, 1))
    forger.entries[one], forger.entries[other] = forger.entries[other], forger.entries[one]


def a_group_is_trained_without_one_sample(forger: Forger) -> None:
    train_on(forger, trained_on(forger)[1:])


def a_group_is_taken_out_of_a_batch(forger: Forger) -> None:
    train_on(forger, trained_on(forger)[2:])


def a_batch_was_never_leased(forger: Forger) -> None:
    samples = [records.UsedSample(group, sample, bytes(16)) for group in (900, 901) for sample in (0, 1)]
    train_on(forger, tuple(samples))


def another_content_was_trained_on(forger: Forger) -> None:
    samples = trained_on(forger)
    changed = (samples[0]._replace(digest=bytes(16)), *samples[1:])
    train_on(forger, changed)


def a_sample_of_a_dead_branch_is_trained_on(forger: Forger) -> None:
    dead, samples = trained_on(forger, Policy(0, 3)), trained_on(forger, Policy(1, 2))
    train_on(forger, (*dead[-2:], *samples[2:]), Policy(1, 2))


def a_sample_that_was_dropped_is_trained_on(forger: Forger) -> None:
    drop = found(forger, records.DropEntry)
    dropped = drop.samples[0]
    used = records.UsedSample(drop.group, dropped.sample, dropped.digest)
    train_on(forger, (used, *trained_on(forger)[1:]))


def a_sample_of_an_evaluation_is_trained_on(forger: Forger) -> None:
    measured = found(forger, records.EvalEntry)
    train_on(forger, (measured.samples[0], *trained_on(forger)[1:]))


def an_evaluation_measures_what_was_leased_to_train_on(forger: Forger) -> None:
    measured = found(forger, records.EvalEntry)
    forger.edit(at(forger, records.EvalEntry), samples=(trained_on(forger)[0], *measured.samples))


def an_evaluation_is_removed(nth: int) -> Callable[[Forger], None]:
    def edit(forger: Forger) -> None:
        del forger.entries[at(forger, records.EvalEntry, nth=nth)]

    return edit


def half_an_evaluation_is_left_out(forger: Forger) -> None:
    forger.edit(at(forger, records.EvalEntry), samples=found(forger, records.EvalEntry).samples[:1])


def an_evaluation_is_credited_to_a_later_policy(forger: Forger) -> None:
    index, measured = at(forger, records.EvalEntry), found(forger, records.EvalEntry)
    entry = forger.entries.pop(index)
    entry.record = replace(measured, policy=measured.policy.next())
    step = at(forger, records.ConsumeEntry, policy=measured.policy)
    forger.entries.insert(step + 3, entry)  # after the step's seal and its publication


def a_drop_is_removed(forger: Forger) -> None:
    del forger.entries[at(forger, records.DropEntry)]


def a_worker_is_doubted_since_a_version_that_never_was(forger: Forger) -> None:
    step = at(forger, records.ConsumeEntry, policy=Policy(2, 4))
    doubt = records.DoubtEntry(worker_id="rollout-eu-0", since=Policy(2, 99), policy=Policy(2, 4), why="nothing")
    forger.entries.insert(step, replace(forger.entries[step], record=doubt))


def a_drop_lists_fewer_samples(forger: Forger) -> None:
    forger.edit(at(forger, records.DropEntry), samples=())


TAMPERINGS = (
    Tampering(a_worker_is_doubted_since_a_version_that_never_was, (Code.DOUBT_CONTRADICTS,)),
    Tampering(a_group_is_trained_on_again, (Code.TRAINED_TWICE,)),
    Tampering(a_sample_is_trained_on_again, (Code.TRAINED_TWICE,)),
    Tampering(a_batch_is_removed, (Code.VERSION_GAP,)),
    Tampering(the_last_batch_of_a_dead_branch_is_removed, (Code.PUBLISH_CONTRADICTS,)),
    Tampering(two_batches_change_places, (Code.VERSION_GAP,)),
    Tampering(a_group_is_trained_without_one_sample, (Code.GROUP_INCOMPLETE,)),
    Tampering(a_group_is_taken_out_of_a_batch, (Code.BATCH_SIZE,)),
    Tampering(a_batch_was_never_leased, (Code.TRAINED_NOT_LEASED,)),
    Tampering(another_content_was_trained_on, (Code.DIGEST_DIFFERS,)),
    Tampering(a_sample_of_a_dead_branch_is_trained_on, (Code.DEAD_BRANCH,)),
    Tampering(a_sample_that_was_dropped_is_trained_on, (Code.TRAINED_AFTER_DROP,)),
    Tampering(a_sample_of_an_evaluation_is_trained_on, (Code.TRAINED_EVAL,)),
    Tampering(an_evaluation_measures_what_was_leased_to_train_on, (Code.EVAL_CONTRADICTS,)),
    Tampering(a_drop_is_removed, (Code.UNACCOUNTED,)),
    Tampering(a_drop_lists_fewer_samples, (Code.DROP_CONTRADICTS,)),
    Tampering(an_evaluation_is_removed(0), (Code.EVAL_CONTRADICTS,), "the_first_evaluation_is_removed"),
    Tampering(an_evaluation_is_removed(-1), (Code.EVAL_CONTRADICTS,), "the_last_evaluation_is_removed"),
    Tampering(half_an_evaluation_is_left_out, (Code.EVAL_CONTRADICTS,)),
    Tampering(an_evaluation_is_credited_to_a_later_policy, (Code.EVAL_CONTRADICTS,)),
)
