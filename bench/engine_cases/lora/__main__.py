"""Claim: a step of adapters crosses in fewer bytes than by TRL's adapter path, and what TRL loads unseen we refuse.

TRL (1.14 and later) writes each version of the adapters with peft into a directory that servers can see, such as a
mounted storage bucket, and vLLM loads it from there under a new name. Ours publishes signed deltas of the adapters.
Both get the same adapters, of random Qwen3 models after real AdamW steps (adapter_training.py).

- `bytes`: what crosses for one step (crossing.py). Each of our versions is first proven by a worker's
  reader, and each of TRL's directories is first read back by peft. `server_reads_bytes` is what counts for TRL: the
  tensors and their configuration, without the model card. A run's first step, in which all of B moves from zero, is in
  the results but not in the figures.
- `served_update`: how much of the update reaches the weights that generate (served_update.py).
- `proof`: faults, and whether a worker's reader and check of the engine find them (our_faults.py), or what
  loads adapters in TRL's path (trl_faults.py). The adapters are trained at a high rate, so that two versions
  can be told apart by what they generate. The check of the scale is repeated at a usual rate.
- `staleness`: which samples TRL's queue passes on, by how many versions they are behind.

TRL and vLLM run in environments of their own: `make .venv-vllm/.installed .venv-oracle/.installed`. Without one its
figures are left out, and the record says `not_measured`. The last line is one JSON object, all else goes to stderr.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench import provenance
from bench.engine_cases.lora import our_faults, trl_faults
from bench.engine_cases.lora.adapter_training import (
    SCALE,
    Case,
    Step,
    config_of,
    float32_tensors,
    random_model,
    train,
    with_adapters,
)
from bench.engine_cases.lora.crossing import Job, Reader, our_bytes, their_bytes
from bench.engine_cases.lora.served_update import served_update
from bench.engine_cases.lora.vllm_server import serving
from bench.provenance import say
from periplus.values.probe_prompts import probe_prompts
from periplus.values.weight_state import write_safetensors
from trainer.data.adapters import round_base
from trainer.data.model import build_tokenizer
from trainer.publishing.publish import bf16_state

ROOT = Path(__file__).parents[3]

MAX_VS_TRL = 0.25
"""Target: largest ratio of our bytes to those that TRL's server reads. Rounding to bfloat16 alone would give 0.5."""
MAX_VS_BF16_ZSTD = 0.75
"""Target: largest ratio of our bytes to the same adapters in bfloat16, compressed by zstandard."""

PROOF_MODEL, PROOF_RANK, PROOF_STEPS = "0.8M", 16, (10, 20, 30)
PROOF_RATE, USUAL_RATE = 1e-3, 4e-5
"""Rates of the adapters that faults are put into: a high one, and that of the recipe shown with TRL's bucket."""

MAX_STALENESS = 4
"""TRL's default bound."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Cases of the benchmark, and how many bits are flipped one at a time in each place."""

    quick: bool
    cases: tuple[Case, ...]
    num_flips: int


def _cases(model: str, rates: Sequence[float], steps: tuple[int, ...]) -> tuple[Case, ...]:
    return tuple(Case(model=model, rank=rank, learning_rate=rate, steps=steps) for rank in (1, 16) for rate in rates)


FULL = Config(
    quick=False,
    cases=(
        *_cases("0.8M", (1e-6, 1e-5, 4e-5, 1e-4), (1, 2, 10, 100)),
        *_cases("Qwen3-0.6B", (1e-5, 4e-5, 1e-4), (1, 2, 6)),
    ),
    num_flips=200,
)
QUICK = Config(quick=True, cases=_cases("0.8M", (4e-5,), (1, 2, 10)), num_flips=10)


def trl(oracle: Path, what: str, settings: Mapping[str, Any], scratch: Path) -> Record:
    """Run TRL's code on the settings and return what it printed. Raises: CalledProcessError if it fails."""
    file = scratch / f"{what}.json"
    file.write_text(json.dumps(settings))
    done = subprocess.run(
        [str(oracle), "-m", "bench.engine_cases.lora.trl_adapter", what, str(file)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: Record = json.loads(done.stdout.splitlines()[-1])
    return found


def saved_by_trl(oracle: Path, case: Case, steps: Sequence[Step], scratch: Path) -> tuple[list[Path], Record]:
    """Let TRL write the adapters of some steps. Return their directories, and what its program printed."""
    asked, folders = [], []
    for step in steps:
        tensors = scratch / f"step-{step.number}.safetensors"
        write_safetensors(tensors, float32_tensors(step.adapters))
        folders.append(scratch / "bucket" / f"trl-policy-v{step.number}")
        asked.append(
            {
                "config": config_of(case.model).to_dict(),
                "base": case.model,
                "rank": case.rank,
                "alpha": int(SCALE * case.rank),
                "tensors": str(tensors),
                "folder": str(folders[-1]),
            }
        )
    (scratch / "bucket").mkdir()
    return folders, trl(oracle, "save", {"adapters": asked}, scratch)


def bytes_of(config: Config, oracle: Path | None) -> Record:
    """Return what crosses in every case and measured step, ours and TRL's, and how much of the update is served."""
    rows: list[Record] = []
    about: Record = {}
    readers: dict[tuple[str, int], Reader] = {}
    for case in config.cases:
        say(f"bytes of {case}")
        # Cases of one model and rank have the same base: the reader gets it once.
        reader = readers.get((case.model, case.rank)) or Reader(Job())
        readers = {(case.model, case.rank): reader}
        with tempfile.TemporaryDirectory(prefix="periplus-bench-") as name:
            steps, found = [], []
            for step in train(with_adapters(random_model(case.model), case.rank), case.learning_rate, case.steps):
                steps.append(step)
                found.append(_one_step(case, step, reader))
            if oracle is not None:
                folders, about = saved_by_trl(oracle, case, steps, Path(name))
                for row, step, folder in zip(found, steps, folders, strict=True):
                    row["trl"] = their_bytes(folder, _flat(step.adapters), _flat(step.adapters_before))
        for row in found:
            say(_line(row))
        rows += found
    return {"rows": rows, "trl_about": about}


def _one_step(case: Case, step: Step, reader: Reader) -> Record:
    middle = config_of(case.model).num_hidden_layers // 2
    layers = ("self_attn.q_proj", "mlp.down_proj")
    return {
        "model": case.model,
        "rank": case.rank,
        "learning_rate": case.learning_rate,
        "step": step.number,
        "adapter_elements": sum(values.size for values in step.adapters.values()),
        "ours": our_bytes(reader, step),
        "served_update": [served_update(step, f"model.layers.{middle}.{layer}.weight") for layer in layers],
    }


def _flat(adapters: Mapping[str, Any]) -> bytes:
    return b"".join(values.tobytes() for _, values in sorted(adapters.items()))


def _line(row: Record) -> str:
    theirs = row.get("trl", {}).get("server_reads_bytes")
    kept = [f"{one['merged']['kept']:.2f}" for one in row["served_update"]]
    return f"  step {row['step']}: ours {row['ours']['wire_bytes']}, TRL {theirs}, kept by the merge {kept}"


def proof(config: Config, oracle: Path | None, vllm: Path | None) -> Record:
    """Return which faults are found by ours, and by what loads TRL's adapters."""
    say("faults in ours")
    chain, steps = our_faults.chain(PROOF_MODEL, PROOF_RANK, PROOF_RATE, PROOF_STEPS)
    usual, _ = our_faults.chain(PROOF_MODEL, PROOF_RANK, USUAL_RATE, PROOF_STEPS)
    other = random_model(PROOF_MODEL, seed=1)
    round_base(other)
    ours = our_faults.faults_found(chain, bf16_state(other), PROOF_MODEL, config.num_flips)
    ours["adapter merged with another scale"] = our_faults.wrong_scale_found(chain, PROOF_MODEL)
    found: Record = {
        "ours": ours,
        "ours_wrong_scale_at_a_usual_rate": our_faults.wrong_scale_found(usual, PROOF_MODEL),
    }
    if oracle is not None and vllm is not None:
        with tempfile.TemporaryDirectory(prefix="periplus-bench-") as name:
            found["trl"] = _trl_proof(config, oracle, vllm, steps, other, Path(name))
    return found


def _trl_proof(
    config: Config, oracle: Path, vllm: Path, steps: Sequence[Step], other: Any, scratch: Path
) -> Mapping[str, Any]:
    case = Case(model=PROOF_MODEL, rank=PROOF_RANK, learning_rate=PROOF_RATE, steps=PROOF_STEPS)
    folders, _ = saved_by_trl(oracle, case, steps, scratch)
    right_model = random_model(PROOF_MODEL)
    round_base(right_model)
    for name, model in (("right", right_model), ("other", other)):
        model.save_pretrained(scratch / name)
        build_tokenizer().save_pretrained(scratch / name)
    prompts = probe_prompts(our_faults.PROBE_SEED, right_model.config.vocab_size)
    say("faults in TRL's path")
    with serving(vllm, scratch / "right", PROOF_RANK, scratch / "right.log") as server:
        rows, right = trl_faults.faults_found(server, folders, scratch, prompts, config.num_flips)
    with serving(vllm, scratch / "other", PROOF_RANK, scratch / "other.log") as server:
        another = trl_faults.other_base(server, folders[2], prompts, right)
    return {**rows, "adapter for another base": another}


def reach_of(results: Mapping[str, Any]) -> Iterator[Record]:
    """Yield the figures that have targets."""
    measured = [row for row in results["bytes"]["rows"] if "trl" in row and row["step"] > 1]
    for name, key, target in (
        ("bytes_vs_trl_max", "server_reads_bytes", MAX_VS_TRL),
        ("bytes_vs_bf16_zstd_max", "bf16_zstd3_bytes", MAX_VS_BF16_ZSTD),
    ):
        if measured:
            worst = max(row["ours"]["wire_bytes"] / row["trl"][key] for row in measured)
            yield provenance.reached(name, worst, "ratio", "<=", target)
    missed = sum(row["missed"] for row in results["proof"]["ours"].values())
    yield provenance.reached("our_faults_missed", missed, "", "==", 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its JSON line. Return exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small model alone, without vLLM: within a minute")
    parser.add_argument("--vllm", type=Path, default=ROOT / ".venv-vllm" / "bin" / "python")
    parser.add_argument("--oracle", type=Path, default=ROOT / ".venv-oracle" / "bin" / "python")
    options = parser.parse_args(arguments)
    config, load = QUICK if options.quick else FULL, os.getloadavg()[0]
    oracle = options.oracle if options.oracle.exists() else None
    vllm = options.vllm if options.vllm.exists() and not config.quick else None
    results: Record = {"bytes": bytes_of(config, oracle), "proof": proof(config, oracle, vllm)}
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as name:
        if oracle is not None:
            results["staleness"] = trl(oracle, "stale", {"max_staleness": MAX_STALENESS}, Path(name))
    reach = list(reach_of(results))
    absent = {"TRL": oracle, "vLLM": vllm}
    record = {
        "bench": "lora",
        "commit": provenance.commit(),
        "machine": provenance.machine(load, torch=torch.__version__),
        "config": asdict(config) | {"not_measured": [name for name, python in absent.items() if python is None]},
        "results": results,
        "reach": reach,
    }
    print(json.dumps(record))
    return 0 if all(row["ok"] for row in reach) else 1


if __name__ == "__main__":
    sys.exit(main())
