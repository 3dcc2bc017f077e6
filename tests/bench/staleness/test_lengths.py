"""Simulated groups are real ones."""

from pathlib import Path

import numpy as np
import pytest

from bench.staleness.lengths import Lengths, Source, sources
from bench.staleness.world import deal_slots, read_links

REAL = Source(name="real", groups=np.array([[1, 2, 3, 4], [50, 60, 70, 80]]))


def test_a_group_is_a_real_group_from_a_random_place_on() -> None:
    lengths = Lengths(REAL, 4, seed=0)
    seen = {tuple(lengths.group(number)) for number in range(200)}
    assert len(seen) == 8
    assert {tuple(sorted(group)) for group in seen} == {(1, 2, 3, 4), (50, 60, 70, 80)}


def test_a_sample_that_is_produced_again_is_of_the_same_problem() -> None:
    lengths = Lengths(REAL, 2, seed=0)
    for number in range(50):
        problem = next(real for real in REAL.groups.tolist() if lengths.group(number)[0] in real)
        assert {lengths.again(number, 0, attempt) for attempt in range(1, 20)} <= set(problem)
        assert lengths.again(number, 0, 1) == lengths.again(number, 0, 1)


def test_without_real_groups_samples_are_independent() -> None:
    lengths = Lengths(Source(name="single", groups=np.array([[1], [2]])), 8, seed=0)
    assert len({tuple(lengths.group(number)) for number in range(100)}) > 50


def test_more_samples_than_the_data_have_are_refused() -> None:
    with pytest.raises(ValueError, match="groups of 5"):
        Lengths(REAL, 5, seed=0)


def test_contests_keep_whole_groups_of_eight(tmp_path: Path) -> None:
    header = "model,dataset,problem,sample,temperature,prompt_tokens,completion_tokens,correct"
    rows = [
        f"m,{dataset},{problem},{sample},0.7,9,{100 * problem + sample},1"
        for dataset, count in (("aime24", 8), ("math500", 1))
        for problem in (1, 2)
        for sample in range(count)
    ]
    (tmp_path / "reasoning_eval_lengths.csv").write_text("\n".join((header, *rows)))
    groups = sources(tmp_path)["aime24"]().groups.tolist()
    assert groups == [[100 * problem + sample for sample in range(8)] for problem in (1, 2)]


def test_links_are_the_slower_direction_and_must_have_been_measured(tmp_path: Path) -> None:
    grid = tmp_path / "grid.csv"
    grid.write_text("src_region,dst_region,throughput_gbps,rtt_ms\na,b,5.0,80\nb,a,4.0,90\na,c,5.0,\nc,a,5.0,10\n")
    links = read_links(grid, ("a", "b"), "a")
    assert (links["b"].one_way_s, links["b"].throughput_gbit_per_s) == (0.045, 4.0)
    assert links["a"].one_way_s == 0.0
    with pytest.raises(ValueError, match="between a and c"):
        read_links(grid, ("a", "c"), "a")


def test_slots_are_dealt_as_equally_as_whole_numbers_allow() -> None:
    assert deal_slots(10, 4) == (3, 3, 2, 2)
    assert deal_slots(1, 3) == (1, 1, 1)
