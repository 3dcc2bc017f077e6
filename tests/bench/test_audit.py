"""The benchmark's writer makes runs in which the audit finds what was put there, and nothing else."""

from dataclasses import replace
from pathlib import Path

from bench.audit import QUICK, measure


def test_a_run_of_the_benchmark_is_clean_and_an_edited_line_of_it_is_found(tmp_path: Path) -> None:
    (row,) = measure(replace(QUICK, lines=QUICK.lines[:1]), tmp_path)
    assert row["lines"] >= QUICK.lines[0]
    assert row["samples"] > 0
