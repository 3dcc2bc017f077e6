import subprocess
import sys
from pathlib import Path

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


def test_the_control_plane_starts_without_a_heavy_library() -> None:
    lines = [
        f"import {module}; print(*({module!r} for name in {HEAVY!r} if name in sys.modules))"
        for module in LIGHT_MODULES
    ]
    program = "\n".join(["import sys", *lines])
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_the_import_contracts_hold() -> None:
    lint_imports = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([lint_imports, "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


GATEWAY_COMMANDS = (("agent",), ("job", "submit"), ("job", "audit"), ("links",), ("plan",), ("coordinator",), ("wan",))


def test_commands_show_their_help_on_a_machine_without_solver_and_environments() -> None:
    program = (
        "import sys; sys.modules.update(ortools=None, reasoning_gym=None)\n"
        "from periplus.__main__ import run\n"
        f"sys.exit(max(run([*command, '--help']) for command in {GATEWAY_COMMANDS!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


WITHOUT_SOLVER = """
import sys; sys.modules.update(ortools=None)
from periplus.__main__ import run
fleet, workload = "examples/fleets/three-clouds.yaml", "examples/workloads/lora-4b.yaml"
sys.exit(run(["plan", "make", "--study", "--fleet", fleet, workload]))
"""


def test_planning_without_the_solver_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_SOLVER], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "needs ortools, which is not installed here; pip install 'periplus[planner]'" in done.stderr
