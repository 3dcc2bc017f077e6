"""The demo learns with each engine that `periplus/schemas/capabilities.json` lists and no other test of jobs uses.

These are the engines with an environment of their own. `make test-vllm` runs the case of vLLM, with vLLM's interpreter
in PERIPLUS_ENGINES.
"""

import json
import os
from pathlib import Path

import pytest

from periplus import schemas
from planner.files.capabilities import read_file
from tests.support.processes.demo import TINY, TWO_REGIONS, assert_all_gone, audit, run_demo

MARKS = {("vllm", "cpu"): pytest.mark.vllm, ("torch", "cuda"): pytest.mark.cuda}
"""The mark of each case. A case without one fails: an engine or device that is added to the file needs a tier."""

ELSEWHERE = {("torch", "cpu"), ("torch", "emulated")}
"""The default engine runs in all other tests of whole jobs: tests/trainer/test_capabilities.py, and on emulated devices
tests/integration/test_emulated_fleet.py."""

CASES = [
    (engine.name, device)
    for engine in read_file(Path(schemas.__path__[0]) / "capabilities.json").engines
    # Larger degrees run without a job, in tests/rollout_worker/engines/vllm/test_tensor_parallel.py: the ranks of all
    # workers of a demo are more than two cores carry.
    for device in engine.tensor
    if (engine.name, device) not in ELSEWHERE
]

DEADLINE_S = 1200.0
"""Seconds that a demo may take. With vLLM it took 135 s on two cores, and more than 400 s beside other tests."""

SHORT = (
    TWO_REGIONS,
    *TINY,
    "--steps=8",
    "--staleness=1",
    "--seed=7",
    "train.groups_per_step=16",
    "optimizer.lr=3e-3",
    "network.check_engine_every_versions=4",
    # To end early is learnt within three steps.
    "reward.functions=[{name: length, target: 2, max: 6}]",
)


@pytest.mark.processes
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=MARKS[name, device], id=f"{name}-{device}") for name, device in CASES]
)
def test_the_demo_learns_with_each_engine_and_device(tmp_path: Path, engine: str) -> None:
    message = f"the test needs the interpreter of an environment with {engine}"
    assert engine == "torch" or f"{engine}=" in os.environ["PERIPLUS_ENGINES"], message
    summary = run_demo(tmp_path, "--engine", engine, *SHORT, deadline_s=DEADLINE_S)
    run_dir = Path(summary["run_dir"])
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    rewards = [line["reward_mean"] for line in lines if line["kind"] == "step"]
    assert rewards[0] < -0.5
    assert rewards[-1] > -0.2
    assert summary["accuracy_after"] > summary["accuracy_before"] + 0.5
    assert (summary["staleness_violations"], summary["weight_digest_mismatches"]) == (0, 0)
    assert summary["steps"] == 8
    assert audit(run_dir)["clean"]
    assert_all_gone(tmp_path)


@pytest.mark.slow
def test_without_an_interpreter_the_demo_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERIPLUS_ENGINES", raising=False)
    with pytest.raises(AssertionError, match=r"has the engine vllm: aws:us-east-1, azure:westeurope; install it"):
        run_demo(tmp_path, "--engine", "vllm", *SHORT)
