"""Tests of the sentence about what a training step waits for."""

from tests.support.ledger.drivers import Frames, driver_of, join, leases_in, sampled
from trainer.intake.waiting import BatchWait, wait_sentence

NOON_S = 43_200.0


def test_the_sentence_names_samples_regions_silence_and_the_end() -> None:
    wait = BatchWait(since_s=10.0, until_s=40.0, num_samples={"us": 3, "eu": 12}, silent_s={"eu": 14.2}, num_unleased=0)
    told = wait_sentence(wait, NOON_S)
    assert told == "waits for 12 samples of eu (silent for 14 s) and 3 of us since 12:00:10, until 12:00:40 UTC"


def test_without_workers_the_sentence_says_so() -> None:
    wait = BatchWait(since_s=10.0, until_s=None, num_samples={}, silent_s={}, num_unleased=0)
    assert wait_sentence(wait, NOON_S) == "waits for workers since 12:00:10 UTC"


def test_a_silent_region_is_named_hedged_and_counted() -> None:
    driver, frames = driver_of(group_size=3, steps=1, lease_timeout_s=60.0), Frames()
    mine, late = join(driver, "a", 2, "eu")
    (other,) = join(driver, "b", 1, "us")
    assert driver.batch_wait() is None
    driver.want_batch(0.0)
    driver.on_frame(frames.commit(sampled(mine)), 0.5)
    driver.on_frame(frames.commit(sampled(other, "b"), worker_id="b"), 0.5)
    hedges = []
    for second in range(1, 7):
        hedges += [lease for lease in leases_in(driver.tick(float(second))) if lease.hedges]
    assert [hedge.hedges for hedge in hedges] == [late.lease_id]
    wait = driver.batch_wait()
    assert wait is not None
    assert (wait.num_samples, wait.silent_s, wait.since_s, wait.until_s) == ({"eu": 1}, {"eu": 5.5}, 0.0, 60.5)
    driver.on_frame(frames.commit(sampled(hedges[0], "b"), worker_id="b"), 7.0)
    driver.on_frame(frames.commit(sampled(late)), 8.0)
    tally = driver.take_tally()
    assert (tally.hedged, tally.hedge_duplicates, tally.duplicates) == (1, 1, 1)
