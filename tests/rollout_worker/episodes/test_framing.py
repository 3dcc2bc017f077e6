from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.registry import trajectory_decoder
from periplus.values.trajectory import Trajectory
from rollout_worker.episodes import framing
from rollout_worker.episodes.framing import LINGER_S, LingeringResults, frames_of, parts_of
from tests.periplus.values.test_trajectory import GOOD
from tests.support.cases import strategies


@given(st.lists(strategies.trajectories(), max_size=12), st.integers(1, 30))
def test_frames_keep_the_order_and_no_frame_of_several_results_is_over_the_limit(
    sampled: list[Trajectory], max_tokens: int
) -> None:
    parts = list(parts_of(sampled, max_tokens))
    assert [trajectory for part in parts for trajectory in part] == sampled
    sizes = [[len(t.prompt_ids) + len(t.completion_ids) for t in part] for part in parts]
    assert all(len(part) == 1 or sum(part) <= max_tokens for part in sizes)
    assert all(sum(part) + after[0] > max_tokens for part, after in pairwise(sizes)), "frames that could be one"


def test_a_frame_decodes_to_the_trajectories_that_went_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "FRAME_TOKENS", 2 * (len(GOOD.prompt_ids) + len(GOOD.completion_ids)))
    samples = [0, 1, 2]
    frames = list(frames_of([replace(GOOD, sample=sample) for sample in samples], zstd_level=1))
    decoded = [trajectory_decoder(frame.codec)(frame.payload, max_content_bytes=1 << 20) for frame in frames]
    assert [[t.sample for t in part] for part in decoded] == [[0, 1], [2]]


def test_a_finished_sample_waits_for_others_for_a_bounded_time_and_not_when_none_is_on_its_way() -> None:
    results = LingeringResults()
    assert results.wait_s(5.0, more_come=True) is None
    results.add([replace(GOOD, group=3, sample=1)], 10.0)
    results.add([replace(GOOD, group=2, sample=1), replace(GOOD, group=3, sample=0)], 10.0 + LINGER_S / 2)
    assert results.wait_s(10.0 + LINGER_S / 2, more_come=True) == pytest.approx(LINGER_S / 2)
    assert results.wait_s(10.0 + 2 * LINGER_S, more_come=True) == 0.0
    assert results.wait_s(10.0, more_come=False) == 0.0
    assert [(each.group, each.sample) for each in results.take()] == [(2, 1), (3, 0), (3, 1)]
    assert results.wait_s(11.0, more_come=False) is None


def test_a_full_frame_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "FRAME_TOKENS", len(GOOD.prompt_ids) + len(GOOD.completion_ids))
    results = LingeringResults()
    results.add([GOOD], 10.0)
    assert results.wait_s(10.0, more_come=True) == 0.0
