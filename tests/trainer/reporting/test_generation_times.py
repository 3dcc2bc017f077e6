"""Busy seconds a step of each region, from the sums that workers report."""

from math import inf, nan

import pytest

from periplus.process.telemetry import check_names
from periplus.values.policy import Policy
from tests.support.trainer.reader_proofs import proof_of
from trainer.reporting.generation_times import MAX_WORKERS, GenerationTimes


def told(times: GenerationTimes, worker: str, version: int, busy_s: float, *, fork: int = 0, ok: bool = True) -> None:
    times.add(worker, worker[:2], proof_of(Policy(fork, version), generation_s=busy_s, ok=ok))


def test_a_region_has_the_mean_of_its_workers_over_the_versions_between_their_reports() -> None:
    times = GenerationTimes()
    told(times, "eu-0", 1, 100.0)
    told(times, "eu-1", 1, 0.0)
    assert times.take() == {}, "one report has no difference"
    told(times, "eu-0", 2, 103.0)
    told(times, "eu-0", 4, 105.0)
    told(times, "eu-1", 2, 1.0)
    told(times, "us-0", 2, 9.0)
    found = times.take()
    assert found == {"generation_s_region/eu": pytest.approx((5 / 3 + 1) / 2)}
    check_names(found)
    told(times, "us-0", 3, 11.0)
    assert times.take() == {"generation_s_region/us": 2.0}, "what was taken does not count again"


def test_a_process_that_starts_anew_begins_with_its_own_sum() -> None:
    times = GenerationTimes()
    told(times, "eu-0", 1, 100.0)
    told(times, "eu-0", 5, 2.0)
    assert times.take() == {}
    told(times, "eu-0", 6, 5.0)
    assert times.take() == {"generation_s_region/eu": 3.0}
    told(times, "eu-0", 3, 6.0, fork=1)
    assert times.take() == {}, "versions of two forks have no distance"


def test_a_version_that_is_reported_again_adds_its_time_to_the_next_one() -> None:
    times = GenerationTimes()
    for version, busy_s in ((1, 1.0), (2, 3.0), (2, 4.0), (3, 6.0)):
        told(times, "eu-0", version, busy_s)
    assert times.take() == {"generation_s_region/eu": 2.5}


@pytest.mark.parametrize("nonsense", [nan, inf, -inf, -1.0])
def test_a_sum_that_is_none_counts_as_no_report(nonsense: float) -> None:
    times = GenerationTimes()
    for version, busy_s in ((1, 1.0), (2, nonsense), (3, 5.0)):
        told(times, "eu-0", version, busy_s)
    told(times, "eu-0", 4, 0.0, ok=False)
    times.add("eu-0", None, proof_of(Policy(0, 4), generation_s=0.0))
    assert times.take() == {"generation_s_region/eu": 2.0}


def test_of_more_workers_than_are_kept_the_one_heard_of_first_is_forgotten() -> None:
    times = GenerationTimes()
    for number in range(MAX_WORKERS + 1):
        told(times, f"eu-{number}", 1, 0.0)
    for number in (0, MAX_WORKERS):
        told(times, f"eu-{number}", 2, 1.0 + number)
    assert times.take() == {"generation_s_region/eu": 1.0 + MAX_WORKERS}
