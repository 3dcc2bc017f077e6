import numpy as np
import pytest

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.engine import CompletionEnd
from rollout_worker.engines.slot_records import SlotRecords

EOS = 2

OLD, NEW = Policy(0, 3), Policy(0, 4)


def begun(limit: int = 6) -> SlotRecords:
    """Records of four slots, of which slots 1 and 3 have begun."""
    records = SlotRecords(num_slots=4, max_new_tokens=6, end_ids=(EOS,))
    for slot in (1, 3):
        records.begin(slot, limit, OLD)
    return records


def add(records: SlotRecords, slots: list[int], tokens: list[int], now_s: float) -> list[bool]:
    logprobs = np.full(len(slots), -0.5, dtype=np.float32)
    return [bool(each) for each in records.add(np.array(slots), np.array(tokens), logprobs, now_s)]


def test_a_completion_ends_with_the_end_token_or_at_its_own_limit() -> None:
    records = begun(limit=2)
    assert add(records, [1, 3], [7, EOS], 1.0) == [False, True]
    assert add(records, [1], [8], 2.0) == [True]
    assert records.completion(1, CompletionEnd.LENGTH).token_ids == (7, 8)
    assert records.completion(3, CompletionEnd.EOS).token_ids == (EOS,)
    assert records.completion(3, CompletionEnd.EOS).logprobs == (-0.5,)


def test_runs_follow_the_policies_and_an_empty_run_is_none() -> None:
    records = begun()
    add(records, [1, 3], [7, 7], 1.0)
    for slot in (1, 3):
        records.change_policy(slot, NEW, kept_kv=True)
    # A rewrite of the same version begins no run.
    records.change_policy(1, NEW, kept_kv=False)
    add(records, [1], [8], 2.0)
    records.change_policy(1, Policy(0, 5), kept_kv=False)
    assert records.completion(1, CompletionEnd.ABORTED).runs == (PolicyRun(OLD, 1), PolicyRun(NEW, 1, kept_kv=True))
    assert records.completion(3, CompletionEnd.ABORTED).runs == (PolicyRun(OLD, 1),)


def test_the_longest_gap_is_between_two_tokens_of_one_completion() -> None:
    records = begun()
    assert records.newest_token_s([1, 3]) is None
    for now_s in (10.0, 11.0, 14.5, 15.0):
        add(records, [1], [7], now_s)
    assert records.completion(1, CompletionEnd.ABORTED).longest_gap_s == pytest.approx(3.5)
    assert records.newest_token_s([1, 3]) == 15.0
    # The next completion of the slot knows nothing of the one before.
    records.begin(1, 6, NEW)
    add(records, [1], [9], 99.0)
    found = records.completion(1, CompletionEnd.ABORTED)
    assert (found.token_ids, found.longest_gap_s, found.runs) == ((9,), 0.0, (PolicyRun(NEW, 1),))
