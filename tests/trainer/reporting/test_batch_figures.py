"""Figures of a batch: lengths, parts of the reward, throughput of regions."""

import json
from dataclasses import replace

import pytest

from periplus.process.telemetry import check_names
from periplus.values.trajectory import StopReason, Trajectory
from tests.support.trainer.kept_samples import REGIONS, trajectory_of
from trainer.reporting.batch_figures import MAX_PARTS, figures_of_batch


def with_parts(number: int, **parts: float) -> Trajectory:
    return trajectory_of(0, number, metadata=json.dumps({"reward_parts": parts}))


def test_lengths_are_of_completions_and_only_those_at_the_limit_are_truncated() -> None:
    batch = [trajectory_of(0, number, completion=((text, 0),)) for number, text in enumerate(("a", "bcd", "ef", "g"))]
    batch[1] = replace(batch[1], stop_reason=StopReason.LENGTH)
    values = figures_of_batch(batch, REGIONS, 2.0)
    check_names(values)
    assert values["completion_tokens_mean"] == 7 / 4
    assert values["completion_tokens_max"] == 3
    assert values["truncated_fraction"] == 0.25


def test_parts_are_averaged_over_the_samples_that_have_them() -> None:
    values = figures_of_batch([with_parts(0, exact=1.0), with_parts(1, exact=0.0, format=0.5)], {}, 1.0)
    check_names(values)
    assert values["reward_part/exact_mean"] == 0.5
    assert values["reward_part/format_mean"] == 0.5


def test_parts_with_odd_names_and_too_many_parts_are_no_metrics() -> None:
    many = {f"p{number:03}": 1.0 for number in range(100)}
    values = figures_of_batch([with_parts(0, **{"a b": 1.0, "\\n": 2.0, **many})], {}, 1.0)
    check_names(values)
    parts = [name for name in values if name.startswith("reward_part/")]
    assert parts == [f"reward_part/p{number:03}_mean" for number in range(MAX_PARTS)]


def test_tokens_count_for_the_region_of_their_worker_and_for_none_if_it_is_unknown() -> None:
    batch = [
        trajectory_of(0, 0, completion=(("abcd", 0),), worker="w-eu"),
        trajectory_of(0, 1, completion=(("ab", 0),), worker="w-us"),
        trajectory_of(0, 2, completion=(("abcdefgh", 0),), worker="gone"),
    ]
    values = figures_of_batch(batch, REGIONS, 2.0)
    regions = {name: value for name, value in values.items() if name.startswith("tokens_per_s_region/")}
    assert regions == {"tokens_per_s_region/eu-west": 2.0, "tokens_per_s_region/us-east": 1.0}


@pytest.mark.parametrize("step_s", [0.0, 1.0])
def test_an_empty_batch_has_no_figures(step_s: float) -> None:
    assert figures_of_batch([], REGIONS, step_s) == {}
