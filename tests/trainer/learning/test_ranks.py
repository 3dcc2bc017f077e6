"""Two real processes share a step over gloo and get what one process gets."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.trainer.rank_process import CASES, steps
from trainer.learning.ranks import Ranks

ROOT = Path(__file__).parents[3]
DEADLINE_S = 120


def test_the_rows_of_all_ranks_are_the_rows() -> None:
    rows = range(7)
    shares = [Ranks(rank=rank, size=3).mine(rows) for rank in range(3)]
    assert sorted(row for share in shares for row in share) == list(rows)
    assert Ranks().mine(rows) == rows


def test_alone_a_sum_is_what_went_in() -> None:
    tensor = torch.tensor([1.0, 2.0])
    assert Ranks().sum_(tensor) is tensor
    assert tensor.tolist() == [1.0, 2.0]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.support.trainer.rank_process"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), "2", folder / "store", folder / str(rank)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / str(rank), weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def one_process() -> dict[str, Any]:
    return steps(Ranks())


@pytest.mark.processes
@pytest.mark.parametrize("case", CASES)
def test_two_processes_take_the_step_that_one_takes(
    case: str, two_ranks: list[dict[str, Any]], one_process: dict[str, Any]
) -> None:
    alone = one_process[case]
    for rank in two_ranks:
        assert rank[case]["values"] == pytest.approx(alone["values"], rel=1e-5, abs=1e-6)
        error = (rank[case]["changed"] - alone["changed"]).norm() / alone["changed"].norm()
        assert float(error) < 1e-5
    assert alone["changed"].norm() > 1e-2
    assert torch.equal(two_ranks[0][case]["changed"], two_ranks[1][case]["changed"])
