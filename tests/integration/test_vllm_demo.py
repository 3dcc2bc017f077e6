"""The demo with vLLM as its engine: it learns, and every version is proven in vLLM's own memory.

`make test-vllm` runs it, with vLLM's interpreter in PERIPLUS_ENGINES.
"""

import os
from pathlib import Path

import pytest

from tests.support.processes.demo import assert_all_gone, audit, run_demo

SHORT = (
    "--regions=aws:us-east-1,azure:westeurope",
    "--steps=24",
    "--staleness=1",
    "--seed=7",
    "train.warmup.max_steps=60",
    "eval.num_prompts=256",
    "eval.every_steps=0",
    "network.check_engine_every_versions=4",
)


@pytest.mark.vllm
@pytest.mark.processes
def test_the_demo_learns_with_vllm(tmp_path: Path) -> None:
    assert "vllm=" in os.environ["PERIPLUS_ENGINES"], "the test needs the interpreter of an environment with vLLM"
    summary = run_demo(tmp_path, "--engine", "vllm", *SHORT)
    # 256 prompts: the standard error of the difference is 0.04.
    assert summary["accuracy_after"] > summary["accuracy_before"] + 0.08
    assert (summary["staleness_violations"], summary["weight_digest_mismatches"]) == (0, 0)
    assert summary["steps"] == 24
    assert audit(Path(summary["run_dir"]))["clean"]
    assert_all_gone(tmp_path)


def test_without_an_interpreter_the_demo_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERIPLUS_ENGINES", raising=False)
    with pytest.raises(AssertionError, match=r"has the engine vllm: aws:us-east-1, azure:westeurope; install it"):
        run_demo(tmp_path, "--engine", "vllm", *SHORT)
