"""The whole runtime as processes: what a person who types `periplus demo` gets, and what is left when it ends."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.processes.demo import (
    TINY,
    TWO_REGIONS,
    assert_all_gone,
    audit,
    pids_of,
    processes_of,
    read_until,
    run_demo,
    start_demo,
)

pytestmark = [pytest.mark.processes, pytest.mark.slow]


SYNCHRONOUS = ("--staleness", "0", "--steps", "4")


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Any]]:
    """Return a working directory, and the summary of a synchronous run in it."""
    work_dir = tmp_path_factory.mktemp("synchronous")
    return work_dir, run_demo(work_dir, *SYNCHRONOUS, *TINY)


def test_the_demo_keeps_its_promises_and_says_so_in_json(synchronous: Any) -> None:
    _, summary = synchronous

    assert summary["steps"] == 4
    assert summary["staleness_max"] == summary["staleness_bound"] == summary["staleness_violations"] == 0
    assert summary["weight_digest_mismatches"] == 0
    assert len(summary["regions"]) == 3
    assert 0 <= summary["accuracy_before"] <= 1
    assert 0 <= summary["accuracy_after"] <= 1
    assert summary["wall_s"] > summary["warmup_s"] > 0
    assert summary["wan_bytes"] > 0
    assert summary["wan_bytes_full_weights"] > 0


def test_the_same_seed_gives_the_same_synchronous_run(synchronous: Any) -> None:
    work_dir, first = synchronous
    # With a worker fewer: who samples makes no difference.
    second = run_demo(work_dir, *SYNCHRONOUS, *TINY, TWO_REGIONS)

    assert first["job_id"] != second["job_id"]
    assert first["weights_digest"] == second["weights_digest"]
    assert (first["accuracy_before"], first["accuracy_after"]) == (second["accuracy_before"], second["accuracy_after"])


def test_the_run_directory_holds_everything(synchronous: Any) -> None:
    _, summary = synchronous
    run = Path(summary["run_dir"])

    assert {"config.yaml", "metrics.jsonl", "plan.json", "report.html", "summary.json"} <= {
        p.name for p in run.iterdir()
    }
    logs = {path.stem.partition("-")[0] for path in (run / "logs").glob("*.log")}
    assert {"trainer", "rollout", "agent", "coordinator", "wan"} <= logs
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kinds = [record["kind"] for record in records]
    assert kinds.count("step") == 4
    assert kinds.count("eval") == 2
    assert kinds[-1] == "summary"
    times_s = [record["time_s"] for record in records]
    assert times_s == sorted(times_s), "the clock does not start again between two phases"
    assert summary["wan_bytes_from"] == "emulator"
    probes_and_control_bytes = summary["wan_bytes"] - records[-1]["wan_bytes"]
    assert 0 < probes_and_control_bytes < summary["wan_bytes"], "the gateways count the job alone"


def test_transformers_loads_the_final_model(synchronous: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, summary = synchronous
    final = Path(summary["run_dir"]) / "final"

    model = AutoModelForCausalLM.from_pretrained(final, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(final, local_files_only=True)

    ids = torch.tensor([tokenizer("word")["input_ids"]])
    assert model(ids).logits.shape[:2] == ids.shape
    assert model.dtype == torch.bfloat16


def test_no_process_is_left_behind(synchronous: Any) -> None:
    work_dir, _ = synchronous

    assert processes_of(work_dir) == []


@pytest.mark.faults
def test_ctrl_c_before_the_first_checkpoint_promises_nothing(tmp_path: Path) -> None:
    demo = start_demo(tmp_path, TWO_REGIONS, *TINY)
    lines = read_until(demo, "job spelling starting")
    demo.send_signal(signal.SIGINT)
    rest = demo.communicate(timeout=60)[1]

    assert demo.returncode == 130, lines + rest
    assert "nothing to resume from" in rest
    assert "--resume" not in rest
    assert processes_of(tmp_path) == []


@pytest.mark.faults
def test_the_death_of_an_agent_ends_the_demo_with_a_message(tmp_path: Path) -> None:
    demo = start_demo(tmp_path, "--steps", "4000", TWO_REGIONS, *TINY)
    lines = read_until(demo, "job spelling starting")
    (agent,) = [pid for pid, words in pids_of(tmp_path) if "agent run" in words and "aws:us-east-1" in words]
    os.kill(agent, signal.SIGKILL)
    rest = demo.communicate(timeout=90)[1]

    assert demo.returncode == 1, lines + rest
    assert "agent-aws:us-east-1 ended unexpectedly" in rest
    assert_all_gone(tmp_path)


def test_weights_change_within_completions_which_are_trained_on_and_audited(tmp_path: Path) -> None:
    """Few requests at a time and long completions: workers are still generating when new weights come."""
    long = ("sampling.max_new_tokens=100", "engine.max_requests=4", "network.check_engine_every_versions=2")
    short = ("--steps", "4", "train.warmup.max_steps=2", "train.groups_per_step=4", "eval.num_prompts=8")
    summary = run_demo(tmp_path, "--staleness", "2", TWO_REGIONS, *TINY, *long, *short)
    run = Path(summary["run_dir"])
    assert summary["staleness_violations"] == 0
    assert summary["weight_digest_mismatches"] == 0
    mixed, trained = set(), set()
    for line in (run / "audit.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "result" and record["verdict"] == "accepted":
            # A run of tokens that kept the cache of an older policy has a fourth number.
            if any(len(policy_run) == 4 for policy_run in record["policies"]):
                mixed.add(record["digest"])
        elif record["kind"] == "consume":
            trained |= {digest for _, _, digest in record["samples"]}
    assert mixed & trained, "no completion lasted across a change of weights"
    assert audit(run)["clean"]
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any(step.get("logprob_mismatch_mixed_tokens", 0) > 0 for step in steps if step["kind"] == "step")
