import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_generated_file_is_what_the_generator_writes() -> None:
    done = subprocess.run(
        [sys.executable, "tools/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
