"""Generator of all committed files that are generated: `periplus/pb/`, JSON schemas, example fleets, docs/metrics.md.

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

from periplus.config import yaml_text
from periplus.job.job_file import job_schema
from periplus.process.telemetry import FAMILIES, METRICS, MetricKind
from planner.files.fleet_file import fleet_schema, to_tree
from planner.files.importers.imported import Imported
from planner.files.importers.published import HetrlScenario, areal_hex_fleet, hetrl_fleet
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
    (docs / "metrics.md").write_text(metrics_page(), encoding="utf-8")


def published_fleets() -> dict[str, Imported]:
    """Return the fleets of published settings, by the names of their files in examples/fleets/ without suffix."""
    fleets = {f"hetrl-{scenario}": hetrl_fleet(scenario) for scenario in HetrlScenario}
    return fleets | {"areal-hex": areal_hex_fleet(num_h800_machines=3, num_h20_machines=3)}


def fleet_text(published: Imported) -> str:
    """Return the text of a fleet file. Comments at its head list what is a guess, because nobody published it."""
    head = [
        "# yaml-language-server: $schema=../../periplus/schemas/fleet.schema.json",
        "# Made by `make generate`. What nobody published:",
    ]
    guesses = [line for guess in published.guesses for line in textwrap.wrap(guess, 116, subsequent_indent="  ")]
    return "\n".join([*head, *(f"#   {line}" for line in guesses), yaml_text.dump(to_tree(published.fleet))])


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
