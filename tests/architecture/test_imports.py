import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "vllm", "reasoning_gym", "accelerate", "tokenizers", "matplotlib")
LIGHT_MODULES = (
    "periplus.__main__",
    "periplus.job.job_file",
    "planner.solve",
    "planner.commands",
    "coordinator.app",
    "region_agent.app",
)


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_the_control_plane_starts_without_a_heavy_library(module: str) -> None:
    program = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_the_import_contracts_hold() -> None:
    lint_imports = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([lint_imports, "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
