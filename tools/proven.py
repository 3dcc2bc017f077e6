"""Says whether a tier of tests has anything new to prove since it last passed, and notes that it has passed.

`proven.py check TIER` ends with 0 if nothing has changed that the tier looks at, and prints since when; else with 1.
`proven.py note TIER` writes to `.ci/proven` that the tier has passed with the files as they are. Each line of that file
has a tier, the digest of its files' names and contents, the date, and the commit that the work tree stood on.

Only tiers whose cost is large and whose subject is small are listed in SUBJECTS. A path is a file or a folder.
"""

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = Path(".ci/proven")

ALWAYS = ("pyproject.toml", "tests/conftest.py", "tests/support/cases/examples.py")
"""What every tier looks at: versions that are asked for, settings of pytest."""

_VLLM = (
    "constraints-vllm.txt",
    "tests/support/engines",
    "periplus/codec",
    "periplus/job",
    "periplus/publication",
    "periplus/values",
    "rollout_worker/engines",
    "trainer/data",
    "trainer/publishing",
)

SUBJECTS = {
    "audit": (
        "constraints.txt",
        "tests/periplus/audit",
        "tests/support/audit",
        "periplus/audit",
        "periplus/codec",
        "periplus/publication",
        "periplus/spool",
        "periplus/values",
    ),
    "clusters": (
        "constraints.txt",
        "tests/integration/test_clusters.py",
        "tests/region_agent/launchers",
        "tests/support/processes",
        "periplus/process",
        "region_agent/control",
        "region_agent/launchers",
        "trainer/distributed",
    ),
    "oracle": ("constraints.txt", "tests/oracle", "tests/support/trainer", "trainer/learning"),
    "planner": (
        "constraints.txt",
        "tests/bench/planner_cases",
        "tests/planner",
        "tests/support/planner",
        "bench/planner_cases",
        "periplus/job",
        "periplus/values",
        "planner",
    ),
    "trainer": ("constraints.txt", "tests/support", "tests/trainer", "periplus", "trainer"),
    "vllm-architectures": (
        *_VLLM,
        "tests/rollout_worker/engines/vllm/test_architectures.py",
        "tests/rollout_worker/engines/vllm/conftest.py",
    ),
    "vllm-engine": (*_VLLM, "tests/rollout_worker/engines/vllm", "tests/support/processes/clusters.py"),
}
"""For each tier: pins, its tests with what they share, and the folders of the product that it proves."""


def files(root: Path, tier: str) -> Iterator[Path]:
    """Return the tier's files, relative to `root`, in order. Raises: FileNotFoundError if a path does not exist."""
    for name in sorted((*ALWAYS, *SUBJECTS[tier])):
        path = root / name
        if not path.exists():
            raise FileNotFoundError(f"{name}, a subject of {tier} in tools/proven.py, does not exist")
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (each.relative_to(root) for each in found if each.is_file() and "__pycache__" not in each.parts)


def digest(root: Path, tier: str) -> str:
    """Return the digest of the names and contents of all files of the tier."""
    found = hashlib.sha256()
    for path in files(root, tier):
        content = (root / path).read_bytes()
        found.update(f"{path}\0{len(content)}\0".encode())
        found.update(content)
    return found.hexdigest()


def record(root: Path) -> dict[str, tuple[str, ...]]:
    """Return what `.ci/proven` says of each tier: digest, date and commit."""
    try:
        lines = (root / RECORD).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    rows = (tuple(line.split()) for line in lines)
    return {row[0]: row[1:] for row in rows if len(row) == 4}


def since(root: Path, tier: str) -> str | None:
    """Return when the tier passed with these files, or None if it has to run."""
    found = record(root).get(tier)
    return f"commit {found[2]}, {found[1]}" if found and found[0] == digest(root, tier) else None


def note(root: Path, tier: str, date: str, commit: str) -> None:
    """Write that the tier has passed with the files as they are."""
    rows = record(root) | {tier: (digest(root, tier), date, commit)}
    text = "".join(f"{name} {' '.join(row)}\n" for name, row in sorted(rows.items()))
    (root / RECORD).write_text(text, encoding="utf-8")


def commit_of(root: Path) -> str:
    """Return the abbreviated commit that the work tree stands on, or `-` outside a repository."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or note a tier; the exit code says whether it is unchanged."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("check", "note"))
    parser.add_argument("tier", choices=sorted(SUBJECTS))
    options = parser.parse_args(arguments)
    if options.what == "note":
        note(ROOT, options.tier, datetime.now(UTC).date().isoformat(), commit_of(ROOT))
        return 0
    found = since(ROOT, options.tier)
    if found is None:
        return 1
    print(f"unchanged since it passed ({found})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
