from dataclasses import replace

import pytest

from rollout_worker.engines.engine import RequestFailed, SampleRequest
from rollout_worker.engines.request_limits import RequestLimits

LIMITS = RequestLimits(vocab_size=50, prompt_tokens=4, max_new_tokens=6)
GOOD = SampleRequest(
    request_id="a", prompt_ids=(0, 49), seed=0, group=3, sample=0, temperature=0.7, max_new_tokens=6, greedy=False
)


def test_good_requests_pass() -> None:
    LIMITS.check(GOOD)
    LIMITS.check(replace(GOOD, greedy=True, temperature=0.0))


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (replace(GOOD, prompt_ids=()), "a prompt of 0 tokens"),
        (replace(GOOD, prompt_ids=(1,) * 5), "a prompt of 5 tokens"),
        (replace(GOOD, prompt_ids=(1, 50)), "token id 50"),
        (replace(GOOD, prompt_ids=(-1, 3)), "token id -1"),
        (replace(GOOD, max_new_tokens=7), "a completion of 7 tokens"),
        (replace(GOOD, max_new_tokens=0), "a completion of 0 tokens"),
        (replace(GOOD, min_new_tokens=7), "a least length of 7 tokens"),
        (replace(GOOD, top_p=0.0), r"top_p is 0\.0"),
        (replace(GOOD, top_p=1.1), r"top_p is 1\.1"),
        (replace(GOOD, top_k=-1), "top_k is -1"),
        (replace(GOOD, temperature=0.0), "temperature is 0.0"),
        (replace(GOOD, temperature=float("nan")), "temperature is nan"),
    ],
)
def test_a_request_that_no_engine_can_take_fails_with_a_reason(bad: SampleRequest, what: str) -> None:
    with pytest.raises(RequestFailed, match=what):
        LIMITS.check(bad)
