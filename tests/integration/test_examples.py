"""The recipes in examples/, each run for two steps on one local fleet."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.demo import TINY, assert_all_gone, audit
from tests.support.processes.local_fleet import DEADLINE_S, local_fleet, own_environment, work_dir

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SMALL = ("steps=2", *TINY[2:], "train.groups_per_step=4", "eval.num_prompts=8")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the home of a user whose fleet runs in the root of this repository."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        with local_fleet(home, "--regions", "2") as (up, _):
            yield home
            up.terminate()
            up.communicate(timeout=DEADLINE_S)
    assert_all_gone(home)


def parts_of(home: Path, job: Path) -> set[str]:
    """Run a recipe for two steps, and return the names of its reward parts in every step's record."""
    submit = ["job", "submit", str(job), *SMALL, "--wait", "--allow-code", "-o", "name"]
    done = subprocess.run(
        [sys.executable, "-m", "periplus", *submit],
        env=own_environment(home),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = work_dir(home) / "runs" / done.stdout.strip()
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
def test_a_recipe_trains_and_records_each_part_of_its_reward(home: Path, name: str, parts: set[str]) -> None:
    assert parts_of(home, EXAMPLES / f"{name}.yaml") == parts


def test_the_preference_recipe_trains_with_the_reward_model_that_its_script_makes(home: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(EXAMPLES / "make_reward_model.py"), str(tmp_path / "model")]
    subprocess.run(words, check=True, timeout=60, cwd=ROOT, capture_output=True)
    job = shutil.copy(EXAMPLES / "preference.yaml", tmp_path)
    Path(job).write_text(Path(job).read_text().replace("path: reward-model", f"path: {tmp_path / 'model'}"))
    assert parts_of(home, Path(job)) == {"model"}
