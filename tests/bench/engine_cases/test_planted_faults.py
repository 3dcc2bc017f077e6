"""The benchmark of planted faults with a few tokens: what is planted is planted, and what is sound is sound."""

import pytest
import torch

from bench.engine_cases.planted_faults import FAULTS, measured


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("decoding's attention 1.5 times as steep", "decoding"),
        ("reported at temperature 1, job at 0.8", "decoding"),
        ("top_k of 20 left on", "drawn"),
        ("", ""),
    ],
)
def test_a_planted_fault_is_found_and_a_sound_engine_is_not(name: str, found: str) -> None:
    torch.set_num_threads(1)
    row = measured(name, size="0.8M", dtype="bfloat16", lr=1e-5, bound=2, seed=3, max_tokens=400)
    assert found in row["found"]
    assert bool(row["found"]) == bool(found)


def test_there_are_twenty_faults() -> None:
    assert len(FAULTS) == 20
