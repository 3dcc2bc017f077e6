"""Steps on a device that is not the CPU: no tensor is left behind, and values are read rarely."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.fake_device_process import CASES

ROOT = Path(__file__).parents[3]
DEADLINE_S = 400

MIXED = """
import torch
from tests.support.trainer.fake_device import NAME, FakeDevice, use_fake_device

use_fake_device()
with FakeDevice() as device:
    there = torch.ones(3, device=NAME)
    assert float((there * torch.tensor(2.0)).sum()) == 6.0  # a single number may be anywhere
    assert device.num_reads == 1
    for mix in (
        lambda: there + torch.ones(3),
        lambda: there[torch.tensor([0, 2])],
        lambda: there.index_copy_(0, torch.tensor([0], device=NAME), torch.ones(1)),
        lambda: there.copy_(torch.ones(3)),
    ):
        try:
            mix()
        except RuntimeError as error:
            assert "of the device and of the CPU" in str(error), error
        else:
            raise SystemExit("tensors of two devices were mixed")
"""


def output_of(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Return the figures of each case on the CPU and on the fake device."""
    loaded: dict[str, Any] = json.loads(output_of("-m", "tests.support.trainer.fake_device_process").splitlines()[-1])
    return loaded


@pytest.mark.slow
@pytest.mark.processes
def test_the_fake_device_refuses_a_tensor_of_the_cpu() -> None:
    output_of("-c", MIXED)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("case", CASES)
def test_a_step_on_the_device_is_the_step_on_the_cpu(case: str, found: dict[str, Any]) -> None:
    on_cpu, on_device = found[case]
    counted = {"num_reads"}
    # Attention comes from other kernels there, which round otherwise, in bfloat16 more than in float32.
    within = 0.02 if "bfloat16" in case else 1e-5
    values = [{name: value for name, value in each.items() if name not in counted} for each in (on_cpu, on_device)]
    assert values[1] == pytest.approx(values[0], rel=within, abs=within)
    assert on_cpu["num_reads"] == 0


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("case", CASES)
def test_reads_grow_with_updates_and_not_with_micro_batches(case: str, found: dict[str, Any]) -> None:
    """Each model reads its figures once an update.

    A step also reads whether its advantages are finite, the penalties of its rewards, its two comparisons, the spread
    of its weights, and the figures of its samples.
    """
    on_device = found[case][1]
    num_models = 2 if case == "ppo" else 1
    assert 3 <= on_device["num_reads"] <= num_models * on_device["num_updates"] + 6


@pytest.mark.slow
@pytest.mark.processes
def test_the_warm_up_and_the_probe_work_on_the_device(found: dict[str, Any]) -> None:
    on_cpu, on_device = found["others"]
    assert on_device["losses"] == pytest.approx(on_cpu["losses"], rel=1e-5)
    # Not the same numbers: the probe replaces `data`, which torch does not let a tensor of the fake device do. There it
    # sees the masters, on the CPU their rounded values.
    assert on_device["probe"] == pytest.approx(on_cpu["probe"], abs=0.02)
