"""The bounded list of events of a job, from which watchers read."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from coordinator import joblog
from coordinator.joblog import JobLog
from coordinator.state import Job, JobRequest, JobState, Settings, State
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind

JOB = Job(job_id="j", request=JobRequest(name="j", min_regions=1, job_json="{}"), fork=0, submitted_at_s=0.0)
RECORD = Record(kind=RecordKind.STEP, policy=Policy(0, 1), time_s=0.0)
PICTURE = State(
    settings=Settings(silent_after_s=1, probe_payload_bytes=1, probe_timeout_s=1, probe_retry_s=1),
    authority_key="",
)


def filled(news: list[Any]) -> JobLog:
    log = JobLog()
    for time_s, item in enumerate(news):
        log.append(float(time_s), item)
    return log


@given(st.lists(st.sampled_from([JOB, RECORD, PICTURE]), max_size=60), st.integers(0, 60))
def test_a_reader_that_comes_back_misses_nothing_but_old_pictures(news: list[Any], seen: int) -> None:
    events = filled(news).after(seen)
    assert [event.news for event in events if event.news is not PICTURE] == [
        item for item in news[seen:] if item is not PICTURE
    ]
    assert all(news[event.sequence - 1] is event.news for event in events)
    pictures = [i for i, item in enumerate(news, 1) if item is PICTURE][-joblog.MAX_PICTURES :]
    assert [event.sequence for event in events if event.news is PICTURE] == [i for i in pictures if i > seen]


def test_a_full_log_keeps_every_state_change_and_the_newest_records() -> None:
    log = filled([JOB, *[RECORD] * joblog.MAX_EVENTS, JOB])
    events = log.after(0)
    assert len(events) == joblog.MAX_EVENTS
    assert [event.sequence for event in events if event.news is JOB] == [1, joblog.MAX_EVENTS + 2]
    assert events[1].sequence == 4


def test_a_resumed_job_tells_nothing_of_its_earlier_fork_as_if_it_were_new() -> None:
    failed = replace(JOB, state=JobState.FAILED, reason="killed by signal 9")
    log = filled([JOB, RECORD, PICTURE, failed])
    seen = log.after(0)[-1].sequence
    again = replace(JOB, fork=1)
    for news in (again, RECORD):
        log.append(9.0, news)
    assert [event.news for event in log.after(0)] == [again, RECORD]
    assert log.after(seen) == log.after(0), "a watcher of the earlier fork misses nothing"
