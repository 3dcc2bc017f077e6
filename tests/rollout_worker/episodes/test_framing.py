from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.registry import trajectory_decoder
from periplus.values.trajectory import Trajectory
from rollout_worker.episodes import framing
from rollout_worker.episodes.framing import frames_of, parts_of
from tests.periplus.values.test_trajectory import GOOD
from tests.support import strategies


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
