"""Partitions of weighted graphs, with METIS and without it."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from planner.methods.areal_hex import metis

Partition = Callable[[np.ndarray, Sequence[float]], np.ndarray]


def racks(num: int, size: int) -> np.ndarray:
    rack = np.arange(num) // size
    weights = np.where(rack[:, None] == rack[None, :], 10.0, 1.0)
    np.fill_diagonal(weights, 0.0)
    return weights


@pytest.mark.parametrize("partition", [metis.partition, metis.grown])
def test_racks_stay_whole(partition: Partition) -> None:
    parts = partition(racks(32, 8), [0.25] * 4)
    assert sorted(np.bincount(parts)) == [8, 8, 8, 8]
    assert all(len(set(parts[i : i + 8])) == 1 for i in range(0, 32, 8))


@pytest.mark.parametrize("partition", [metis.partition, metis.grown])
def test_parts_have_the_shares_asked_for(partition: Partition) -> None:
    weights = np.random.default_rng(0).uniform(1, 2, (40, 40))
    parts = partition(np.minimum(weights, weights.T) * (1 - np.eye(40)), [0.25, 0.75])
    assert np.bincount(parts, minlength=2)[0] == pytest.approx(10, abs=2)


def test_a_graph_smaller_than_its_number_of_parts_gives_a_node_a_part() -> None:
    assert list(metis.partition(racks(3, 3), [0.2] * 5)) == [0, 1, 2]


def test_the_same_graph_gives_the_same_parts() -> None:
    weights = racks(24, 5)
    assert np.array_equal(metis.partition(weights, [0.5, 0.5]), metis.partition(weights, [0.5, 0.5]))


def test_without_metis_parts_are_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metis, "pymetis", None)
    weights = racks(12, 4)
    assert np.array_equal(metis.partition(weights, [0.5, 0.5]), metis.grown(weights, [0.5, 0.5]))
