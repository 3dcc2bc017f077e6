"""A trainer's key is certified once for each fork, where its job is placed, and nobody else's is."""

import pytest

from coordinator.events import JobSubmitted, RefuseCertificate, RegionJoined, SendCertificate
from periplus.values.policy import Policy
from periplus.values.task import TaskState
from tests.support.coordinator.machine_run import KEYS, Run, hello, report, request


def test_a_trainer_gets_a_certificate_of_its_key_and_the_same_again(run: Run) -> None:
    for _ in range(2):
        answer = run.asks("eu")
        assert answer == SendCertificate(region="eu", epoch=1, job_id="j", fork=0, public_key=KEYS[0])
    assert run.job().trainer_key == KEYS[0].hex()
    run.do(RegionJoined(hello("eu", tasks=(report("j/trainer", TaskState.RUNNING),)), 1))
    again = run.asks("eu")
    assert isinstance(again, SendCertificate)
    assert again.epoch == 2


@pytest.mark.parametrize(
    ("region", "fork", "key", "job_id", "why"),
    [
        ("eu", 0, KEYS[1], "j", "has a trainer with another key already"),
        ("eu", 1, KEYS[0], "j", "is at fork 0; a trainer of fork 1 is not followed"),
        ("us", 0, KEYS[0], "j", "is placed in eu, not in us"),
        ("eu", 0, KEYS[0], "k", "is placed in no region yet, not in eu"),
        ("eu", 0, KEYS[0], "old", "knows no job 'old'"),
    ],
)
def test_nobody_else_gets_a_certificate(run: Run, region: str, fork: int, key: bytes, job_id: str, why: str) -> None:
    run.asks("eu")
    run.do(JobSubmitted("r2", "k", request()))
    jobs = run.state.jobs
    answer = run.asks(region, fork, key, job_id)
    assert isinstance(answer, RefuseCertificate)
    assert (answer.region, answer.epoch, answer.job_id, answer.fork) == (region, 1, job_id, fork)
    assert why in answer.reason
    assert run.state.jobs == jobs


def test_an_ended_job_gets_no_certificate_and_its_next_fork_may_have_another_key(run: Run) -> None:
    run.asks("eu")
    run.says("eu", "j/trainer", TaskState.FAILED)
    answer = run.asks("eu")
    assert isinstance(answer, RefuseCertificate)
    assert "has failed" in answer.reason
    run.says("us", "j/rollout-us-0", TaskState.STOPPED)
    resume = request(resume_from="runs/j", resume_policy=Policy(0, 9), resume_job_id="j")
    run.do(JobSubmitted("r2", "unused", resume))
    run.place("j", "us", "eu")
    assert isinstance(run.asks("eu", fork=1, key=KEYS[1]), RefuseCertificate)
    assert isinstance(run.asks("us", fork=0), RefuseCertificate)
    assert isinstance(run.asks("us", fork=1, key=KEYS[1]), SendCertificate)
