"""Generator of all committed files that are generated: `periplus/pb/`, JSON schemas, example fleets, and pages.

    python tools/generate.py           write them into the checkout
    python tools/generate.py --check   write them elsewhere, compare, and print the files that are stale; exit code 1 if
                                       there are any

The versions of grpcio-tools and mypy-protobuf decide the bytes, and are pinned in constraints.txt.
"""

import argparse
import json
import sys
import tempfile
import textwrap
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

from bench.planner_cases.fleets.fleet_with_guesses import FleetWithGuesses
from bench.planner_cases.fleets.published import HetrlScenario, areal_hex_fleet, hetrl_fleet
from periplus.config import yaml_text
from periplus.job.architectures import ARCHITECTURES, WITHOUT_TORCH, SupportedArchitecture
from periplus.job.job_file import job_schema
from periplus.process.exported_metrics import AGENT_METRICS, COORDINATOR_METRICS
from periplus.process.telemetry import FAMILIES, METRICS, MetricKind
from planner.files.fleet_file import fleet_schema, to_tree
from planner.files.workload_file import workload_schema

ROOT = Path(__file__).resolve().parent.parent
"""Root of the checkout."""


def generate(out: Path) -> None:
    """Write the generated files under `out`, at the paths that they have in the checkout."""
    protos = sorted(str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto").rglob("*.proto"))
    programs = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"--proto_path={ROOT / 'proto'}",
        f"--proto_path={resources.files('grpc_tools') / '_proto'}",
        *(f"--plugin={name}={programs / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")),
        *(f"--{language}_out={out}" for language in ("python", "grpc_python", "mypy", "mypy_grpc")),
        "--mypy_opt=quiet",
        "--mypy_grpc_opt=quiet",
        *protos,
    ]
    if protoc.main(arguments):
        raise SystemExit("protoc failed")
    schemas, fleets, docs = out / "periplus" / "schemas", out / "examples" / "fleets", out / "docs"
    for folder in (schemas, fleets, docs):
        folder.mkdir(parents=True, exist_ok=True)
    for name, schema in (("job", job_schema()), ("fleet", fleet_schema()), ("workload", workload_schema())):
        (schemas / f"{name}.schema.json").write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
    for name, published in published_fleets().items():
        (fleets / f"{name}.yaml").write_text(fleet_text(published), encoding="utf-8")
    (docs / "architectures.md").write_text(architectures_page(), encoding="utf-8")
    (docs / "metrics.md").write_text(metrics_page(), encoding="utf-8")
    (docs / "exported-metrics.md").write_text(exported_metrics_page(), encoding="utf-8")


def published_fleets() -> dict[str, FleetWithGuesses]:
    """Return the fleets of published settings, by the names of their files in examples/fleets/ without suffix."""
    fleets = {f"hetrl-{scenario}": hetrl_fleet(scenario) for scenario in HetrlScenario}
    return fleets | {"areal-hex": areal_hex_fleet(num_h800_machines=3, num_h20_machines=3)}


def fleet_text(published: FleetWithGuesses) -> str:
    """Return the text of a fleet file. Comments at its head list what is a guess, because nobody published it."""
    head = [
        "# yaml-language-server: $schema=../../periplus/schemas/fleet.schema.json",
        "# Made by `make generate`. What nobody published:",
    ]
    guesses = [line for guess in published.guesses for line in textwrap.wrap(guess, 116, subsequent_indent="  ")]
    return "\n".join([*head, *(f"#   {line}" for line in guesses), yaml_text.dump(to_tree(published.fleet))])


ARCHITECTURES_HEAD = """# Supported architectures

<!-- Made by `make generate` from periplus/job/architectures.py. -->

A model has the architecture that its `config.json` names as `model_type`. For each one in the table,
`tests/integration/test_architectures.py` takes a small random model through the functions of a job: it checks and loads
a checkpoint that transformers saved, trains one step, publishes the new weights as a delta, generates with the torch
engine and exports the model. It compares with transformers alone, in float32: log-probabilities in training, tokens and
log-probabilities of greedy generation, and the exported weights. `make test-vllm-architectures` does so for vLLM, on
one CPU: weights written in place, their digest, tokens and log-probabilities.

No model of a usual size was tested, and none on an accelerator. Models of other sizes, and bfloat16, may show what
small ones in float32 do not.

- *training*: `packed` sequences have no padding. Models with sliding windows are padded all the same.
- *windows*: whether models with sliding windows are among the tested ones. `-`: none are.
- *head*: whether output projection and embeddings are one tensor (`tie_word_embeddings`) in the tested models.
- *LoRA*: `model.lora`. *torch*, *vLLM*: serving with this `engine.name`.

| model_type | models | training | windows | head | LoRA | torch | vLLM |
|---|---|---|---|---|---|---|---|
"""
"""Text of docs/architectures.md before the rows of its table."""

ARCHITECTURES_REST = """
## Other architectures
`periplus job submit` and `--dry-run` warn of an architecture that is not in the table, by its name. The job runs.

Refused with exit code 2, before the job is sent:

- what the table calls refused, in that use;
- with `engine.name=torch`: layers other than causal attention with or without a sliding window (`layer_types`),
  `alibi`, and the architectures below;
- with `engine.name=vllm`: experts, and a Qwen2 in which only some layers have a sliding window;
- `use_bidirectional_attention`, where tokens see those after them;
- rotary embeddings of the types dynamic and longrope, if a prompt and its completion may be longer than
  `original_max_position_embeddings`: their frequencies depend on the longest sequence of a batch;
- tensors besides parameters in a checkpoint, as Apertus has: they are neither published nor exported;
- encoders, encoder-decoders, models of more than text, quantised weights ([jobs.md](jobs.md#tensors)).

With these the torch engine fails, or would generate other tokens than transformers:

"""
"""Text of docs/architectures.md after the notes on its table."""


def architectures_page() -> str:
    """Return the text of docs/architectures.md."""
    rows = [
        f"| `{each.model_type}` | {each.families} | {'packed' if each.is_packed else 'padded'} | "
        f"{'tested' if each.windows else '-'} | {each.ties} | {each.adapters} | {each.torch} | {each.vllm} |\n"
        for each in ARCHITECTURES
    ]
    notes = [
        f"- `{each.model_type}`: {' '.join(found)}\n" for each in ARCHITECTURES if (found := _architecture_notes(each))
    ]
    kinds_of: dict[str, list[str]] = {}
    for kind, why in WITHOUT_TORCH.items():
        kinds_of.setdefault(why, []).append(f"`{kind}`")
    refused = [f"- {', '.join(kinds)}: {why}.\n" for why, kinds in kinds_of.items()]
    return "".join([ARCHITECTURES_HEAD, *rows, "\n", *notes, ARCHITECTURES_REST, *refused])


def _architecture_notes(each: SupportedArchitecture) -> list[str]:
    notes = [each.remark] if each.remark else []
    if each.adapter_layers:
        notes.append(f"Set `model.lora.target_modules` to some of: {', '.join(each.adapter_layers)}.")
    if each.vllm_refusal:
        notes.append(f"vLLM is refused: {each.vllm_refusal}.")
    return notes


def metrics_page() -> str:
    """Return the document that lists every metric of the registry."""
    head = """# Metrics

Made by `make generate` from the registry in `periplus/process/telemetry.py`, which refuses every other name.

`metrics.jsonl` in a run's directory has one JSON object a line: a phase, a warm-up step, an evaluation, a training step
or the summary (`kind`), the policy (`fork`, `version`), `time_s` since the trainer's start, and the values below that
the record has. A value that is not finite is `null`. A *counter* counts since the last record and may be summed over
records; a *gauge* may not. `<region>` and `<part>` stand for the names of regions and of the parts of a reward.
"""
    rows = [
        (m.name, m.unit, "counter" if m.kind is MetricKind.COUNTER else "gauge", m.sentence) for m in METRICS.values()
    ]
    rows += [(family.shown, family.unit, "gauge", family.sentence) for family in FAMILIES]
    lines = [f"| `{name}` | {unit} | {kind} | {sentence} |" for name, unit, kind, sentence in rows]
    return "\n".join([head, "| name | unit | kind | meaning |", "|---|---|---|---|", *lines]) + "\n"


EXPORTED_METRICS_HEAD = """# Metrics for Prometheus

<!-- Made by `make generate` from periplus/process/exported_metrics.py, which refuses every other name. -->

`periplus coordinator --metrics HOST:PORT` and `periplus agent --metrics HOST:PORT` serve `http://HOST:PORT/metrics` in
the text format of Prometheus. Without the option nothing is served. With port 0 the system chooses a port; the ready
file has it as `metrics`. [deploy/README.md](../deploy/README.md) has a configuration of Prometheus, alerts and a
dashboard.

The endpoint asks for no token. The values are no secrets, but they name regions and jobs: let only the scraper reach
the port.

- Values are what the process knows at the time of the scrape; nothing is measured for a scrape.
- A job's id is the label `job_id`, since Prometheus gives every series a label `job` of its own.
- Jobs that have ended have no series of their own; they count in `periplus_jobs`.
- A counter begins anew when its process starts again.
- Both processes also export what prometheus_client knows of a process: `process_cpu_seconds_total`,
  `process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_start_time_seconds`, `process_open_fds` and
  `process_max_fds`.
- The values of each training step are in `metrics.jsonl` of the run ([metrics.md](metrics.md)).
"""
"""Text of docs/exported-metrics.md before its tables."""


def exported_metrics_page() -> str:
    """Return the document that lists every metric for Prometheus, those of the coordinator first."""
    lines = [EXPORTED_METRICS_HEAD]
    for title, metrics in (("The coordinator", COORDINATOR_METRICS), ("An agent", AGENT_METRICS)):
        lines += [f"## {title}", "| name | labels | kind | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{m.name}` | {', '.join(f'`{label}`' for label in m.labels) or '-'} | {m.kind} | {m.sentence} |"
            for m in metrics
        ]
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def stale() -> list[str]:
    """Return the generated files whose committed text differs, and the committed files that nothing generates."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        generate(out)
        fresh = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    committed = {str(path.relative_to(ROOT)) for path in (ROOT / "periplus" / "pb").rglob("*_pb2*.py*")}
    committed -= {name for name in committed if "__pycache__" in name}
    differing = {name for name, text in fresh.items() if not _is(ROOT / name, text)}
    return sorted(differing | (committed - fresh.keys()))


def _is(path: Path, text: bytes) -> bool:
    return path.exists() and path.read_bytes() == text


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare only")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    names = stale()
    for name in names:
        print(f"{name}: not what `make generate` writes")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
