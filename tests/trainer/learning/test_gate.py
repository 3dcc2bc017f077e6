"""The gate trusts nobody; what is fed past it is still counted, and shows in the summary."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.process.telemetry import check_names
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose, SamplingParams, StopReason, Trajectory, token_ids
from trainer.learning.gate import admit, inspect
from trainer.reporting.delivery import Sent
from trainer.reporting.progress import Progress

CONSUMER = Policy(1, 5)
BOUND = 2


def of(*runs: tuple[Policy, int], group: int = 0, sample: int = 0) -> Trajectory:
    num_tokens = sum(count for _, count in runs)
    return Trajectory(
        lease_id=1,
        group=group,
        sample=sample,
        item=0,
        purpose=Purpose.TRAIN,
        prompt_ids=token_ids((1,)),
        completion_ids=token_ids((2,) * num_tokens),
        logprobs=np.zeros(num_tokens, np.float32),
        mask=np.ones(num_tokens, np.bool_),
        sampling=SamplingParams(temperature=1.0),
        policies=tuple(PolicyRun(policy, count) for policy, count in runs),
        reward=0.0,
        stop_reason=StopReason.EOS,
        worker_id="w",
        generation_s=0.0,
    )


STALE = of((Policy(1, 2), 3))
OF_ANOTHER_FORK = of((Policy(0, 5), 3))
FROM_THE_FUTURE = of((Policy(1, 6), 3))


@pytest.mark.parametrize("unfit", [STALE, OF_ANOTHER_FORK, FROM_THE_FUTURE])
def test_each_unfit_token_is_a_violation_and_its_whole_group_is_refused(unfit: Trajectory) -> None:
    partner, other = of((CONSUMER, 2), sample=1), of((CONSUMER, 2), group=1)
    fit, found = admit((unfit, partner, other), CONSUMER, BOUND)
    assert fit == (other,)
    assert found.violations == 3
    assert found.unfit_groups == {0}


def test_one_old_token_within_a_fresh_completion_is_found() -> None:
    found = inspect((of((Policy(1, 2), 1), (CONSUMER, 7)),), CONSUMER, BOUND)
    assert found.violations == 1
    assert found.tokens_by_staleness == {3: 1, 0: 7}


def test_a_token_as_old_as_the_bound_is_fit() -> None:
    batch = (of((Policy(1, 3), 4)), of((CONSUMER, 4), group=1))
    fit, found = admit(batch, CONSUMER, BOUND)
    assert (fit, found.violations) == (batch, 0)
    assert (found.staleness_max, found.staleness_mean) == (2, 1.0)


@pytest.mark.parametrize("unfit", [STALE, OF_ANOTHER_FORK, FROM_THE_FUTURE])
def test_what_is_fed_past_the_gate_is_a_violation_in_the_summary(unfit: Trajectory) -> None:
    """The number that promises freshness is measured on what was trained on, not on what was admitted."""
    progress = Progress().consumed(inspect((unfit,), CONSUMER, BOUND), num_tokens=3, num_dropped=0, step_s=1.0)
    summary = progress.summary({}, wall_s=1.0, bound=BOUND, num_remote_regions=0)
    assert summary["staleness_violations"] == 3
    check_names(summary)


def test_a_stale_step_shows_in_the_largest_staleness_of_the_summary_for_good() -> None:
    progress = Progress()
    for batch in ((STALE,), (of((CONSUMER, 2)),)):
        progress = progress.consumed(inspect(batch, CONSUMER, BOUND), 2, 0, 1.0)
    assert progress.summary({}, wall_s=0, bound=BOUND, num_remote_regions=0)["staleness_max"] == 3


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 7), st.integers(1, 3)), max_size=6))
def test_what_is_admitted_has_no_violation_and_nothing_fit_is_refused(rows: list[tuple[int, int, int, int]]) -> None:
    batch = tuple(
        of((Policy(fork, version), tokens), group=group, sample=i)
        for i, (group, fork, version, tokens) in enumerate(rows)
    )
    fit, found = admit(batch, CONSUMER, BOUND)
    assert inspect(fit, CONSUMER, BOUND).violations == 0
    bad = {t.group for t in batch for r in t.policies if r.policy.fork != 1 or not 3 <= r.policy.version <= 5}
    assert found.unfit_groups == bad
    assert fit == tuple(t for t in batch if t.group not in bad)


SENT = Sent(
    is_delta=True,
    payload_bytes=10,
    content_bytes=20,
    num_elements=10,
    num_changed=3,
    snapshot_s=0.1,
    encode_s=0.2,
    publish_s=0.3,
)


def test_sums_survive_a_checkpoint_and_an_older_build_that_knew_fewer() -> None:
    progress = replace(Progress(), steps=3.0, staleness_violations=1.0).published(SENT).received(5, 50)
    kept = progress.to_mapping()
    assert Progress.of_mapping(kept) == progress
    del kept["delta_bytes"]
    assert Progress.of_mapping({**kept, "of_a_newer_build": 1.0}) == replace(progress, delta_bytes=0.0)
