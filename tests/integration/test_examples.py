"""The recipes in examples/, each run for two steps by real processes in several regions."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.demo import TINY, audit, run_demo

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SMALL = (*TINY[1:3], "eval.num_prompts=8", "optimizer.warmup_steps=0", "train.groups_per_step=4", "eval.every_steps=0")


def parts_of(folder: Path, job: Path, *overrides: str) -> set[str]:
    """Run a recipe for two steps, and return the names of its reward parts in every step's record."""
    summary = run_demo(folder, "--job", str(job), "--steps", "2", *SMALL, *overrides)
    assert summary["steps"] == 2
    run = folder / "runs" / summary["job_id"]
    assert audit(run)["clean"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "step"]
    assert len(steps) == 2
    assert all(step["reward_failures"] == 0 for step in steps)
    names = {name for step in steps for name in step if name.startswith("reward_part/")}
    return {name.removeprefix("reward_part/").removesuffix("_mean") for name in names}


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("gsm8k", {"math"}), ("code", {"code", "length"}), ("my_rewards", {"my_rewards:score", "length"})],
)
def test_a_recipe_trains_and_records_each_part_of_its_reward(tmp_path: Path, name: str, parts: set[str]) -> None:
    assert parts_of(tmp_path, EXAMPLES / f"{name}.yaml") == parts


def test_the_preference_recipe_trains_with_the_reward_model_that_its_script_makes(tmp_path: Path) -> None:
    words = [sys.executable, str(EXAMPLES / "make_reward_model.py"), str(tmp_path / "model")]
    subprocess.run(words, check=True, timeout=60, cwd=ROOT, capture_output=True)
    job = shutil.copy(EXAMPLES / "preference.yaml", tmp_path)
    Path(job).write_text(Path(job).read_text().replace("path: reward-model", f"path: {tmp_path / 'model'}"))
    assert parts_of(tmp_path, Path(job)) == {"model"}
