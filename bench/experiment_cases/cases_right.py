"""Claim: small inputs from public bug reports of other trainers come out right (`cases_right`, the share of them).

The inputs are in `../shared/cases` beside the repository: job files, rewards, data, and mk_models.py, which makes their
checkpoints. Its README says what each must do. They are copied into a temporary folder, which is also the home of one
fleet that runs all jobs. A check that raises an error counts as wrong; what it found is in the record.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import periplus
from bench.experiment_cases.case import CaseResult, Figure
from coordinator.client.library.client import Client
from coordinator.client.library.submitted_job import SubmittedJob
from periplus.errors import PeriplusError

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT.parent / "shared" / "cases"

DEADLINE_S = 180.0
"""Seconds that one job may take. Chosen by hand: on a quiet machine each needs 15 s."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The copied folder and the fleet that runs its jobs."""

    folder: Path
    client: Client

    def job(self, file: str, *overrides: str) -> SubmittedJob:
        """Submit a job file of the folder."""
        return self.client.submit(self.folder / file, overrides=overrides, allow_code=True)

    def run(self, file: str, *overrides: str) -> SubmittedJob:
        """Submit a job file and wait for its success."""
        job = self.job(file, *overrides)
        job.wait(timeout_s=DEADLINE_S)
        return job

    def python(self, *words: str) -> str:
        """Return what a Python program prints in the folder. Raises: AssertionError if it fails."""
        done = subprocess.run([sys.executable, *words], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-500:]
        return done.stdout + done.stderr

    def dry_run(self, file: str, *overrides: str) -> str:
        """Return what a dry run of a job file says."""
        return self.python("-m", "periplus", "job", "submit", file, "--dry-run", *overrides)


def samples(job: SubmittedJob) -> list[dict[str, Any]]:
    """Return all samples of the first step."""
    found = list(job.samples(step=1, size=100))
    assert found, "the step has no samples"
    return found


def b02(bench: Bench) -> bool:
    """Completions end at the end token of the chat template."""
    reasons = [each["stop_reason"] for each in samples(bench.run("b02_two_eos.yaml"))]
    # The model says the end token with a probability of 0.8: 32 others in a row do not happen.
    return set(reasons) == {"eos"}


def b03(bench: Bench) -> bool:
    """Samples that no function judged are counted, and have no advantage."""
    job = bench.run("b03_none.yaml")
    step = next(iter(job.metrics()))
    unjudged = [each for each in samples(job) if each["reward"] is None or not each["reward_parts"]]
    is_counted = 0 < len(unjudged) == step["unjudged_samples"]
    return is_counted and not any(each["advantage"] for each in unjudged)


def b04(bench: Bench) -> bool:
    """Reward functions see the special token that the model says in most of its completions."""
    found = samples(bench.run("b04_special.yaml"))
    said = ["<think>" in "".join(run["text"] for run in each["completion"]) for each in found]
    return any(said) and [bool(each["reward"]) for each in found] == said


def b05(bench: Bench) -> bool:
    """A checkpoint whose files contradict its config is refused at submission, by the key's name."""
    return "tie_word_embeddings" in _refusal(lambda: bench.job("b05_tied.yaml"))


def b06(bench: Bench) -> bool:
    """A run whose file has grown is not resumed, unless this is allowed; then it says so."""
    job = bench.job("b06_resume.yaml", "steps=100000")
    next(iter(job.metrics(follow=True)))
    job.cancel()
    job.wait(timeout_s=DEADLINE_S)
    with (bench.folder / "grows.jsonl").open("a") as file:
        file.write('{"prompt": "7+1=", "answer": "8"}\n')
    run_dir, version = job.run_dir, sum(1 for _ in job.metrics())
    refusal = _refusal(lambda: bench.client.resume(run_dir).wait(timeout_s=DEADLINE_S))
    allowed = bench.client.resume(run_dir, overrides=[f"steps={version + 1}"], allow_other_problems=True)
    allowed.wait(timeout_s=DEADLINE_S)
    said = [each for each in allowed.metrics(kinds=["summary"]) if each["changes_of_problems"] == 1]
    return "grows.jsonl" in refusal and len(said) == 1


def b07(bench: Bench) -> bool:
    """The answer in its tags is judged, and no number in the thoughts."""
    values = re.findall(r"math=(\S+) format=(\S+)", bench.python("b07_math_tags.py"))
    return values == [(math, "1.0") for math in ("1.0", "0.0", "1.0", "1.0", "0.0", "1.0", "0.0", "1.0")]


def b08(bench: Bench) -> bool:
    """A right program counts, whatever other blocks stand around it."""
    return re.findall(r" (\S+)$", bench.python("b08_code.py"), re.MULTILINE) == ["1.0"] * 4


def b09(bench: Bench) -> bool:
    """Bytes of a Parquet file are text."""
    return "its answer: '2'" in bench.dry_run("b09_bytes.yaml")


def b11(bench: Bench) -> bool:
    """A function with TRL's further arguments gives real rewards, the completions' lengths."""
    found = samples(bench.run("b11_signature.yaml", "steps=20"))
    return all(each["reward"] == each["completion_tokens"] for each in found)


def b12(bench: Bench) -> bool:
    """The home's `~` in `output.dir` is the home, and no directory has this name."""
    job = bench.run("b12_home.yaml")
    return Path(job.run_dir).parent == Path.home() / "periplus-runs" and not list(bench.folder.rglob("~"))


def b13(bench: Bench) -> bool:
    """`True` is read as YAML 1.2 has it."""
    return "filter_groups: true" in bench.dry_run("b13_yaml.yaml")


def b14(bench: Bench) -> bool:
    """A byte order mark is skipped."""
    return "problems: 3;" in bench.dry_run("b14_bom.yaml")


def b15(bench: Bench) -> bool:
    """Whole numbers that are stored as floats have no decimal point."""
    return "its answer: '2'" in bench.dry_run("b15_float.yaml")


def b16(bench: Bench) -> bool:
    """A prompt that has its BOS already gets no second one."""
    bos = json.loads((bench.folder / "models" / "bos" / "config.json").read_text())["bos_token_id"]
    said = bench.dry_run("b16_bos.yaml", "model.chat_template=none")
    tokens = re.findall(r"its tokens: (.+)", said)[0].split()
    return bool(tokens.index(str(bos)) == 0 and tokens.count(str(bos)) == 1)


def b17(bench: Bench) -> bool:
    """Groups without a right sample are filtered, although their shaped rewards differ: none is trained on."""
    job = bench.run("b17_shaped.yaml")
    steps = list(job.metrics())
    # A step whose groups all fall out trains on nothing: it has no loss, and no samples are kept.
    trained = samples(job) if "loss" in steps[0] else []
    right = {each["group"] for each in trained if each["reward_parts"]["exact"]}
    is_filtered = any(step["filtered_samples"] for step in steps)
    return is_filtered and not any(each["advantage"] for each in trained if each["group"] not in right)


CHECKS: tuple[Callable[[Bench], bool], ...] = (
    *(b02, b03, b04, b05, b06, b07, b08, b09),
    *(b11, b12, b13, b14, b15, b16, b17),
)
"""The checks by the numbers of the folder's README, which has no b01 and no b10."""


def measure(*, quick: bool) -> CaseResult:
    """Judge every case. `quick` judges as many: each takes seconds."""
    del quick
    if not FOLDER.is_dir():
        raise SystemExit(f"{FOLDER} is missing: the cases lie beside the repository")
    wrong: dict[str, str] = {}
    with _bench() as bench:
        bench.python("mk_models.py")
        for check in CHECKS:
            try:
                is_right, why = check(bench), check.__doc__ or ""
            except (PeriplusError, AssertionError, LookupError, StopIteration) as error:
                is_right, why = False, f"{type(error).__name__}: {error}"
            print(f"{check.__name__} {'right' if is_right else f'WRONG: {why}'}", file=sys.stderr)
            if not is_right:
                wrong[check.__name__] = why
    share = 1 - len(wrong) / len(CHECKS)
    figure = Figure(name="cases_right", value=share, unit="fraction", op=">=", target=1.0)
    return CaseResult(figures=(figure,), config={"cases": len(CHECKS)}, results={"wrong": wrong})


def _refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except PeriplusError as error:
        return str(error)
    return ""


@contextlib.contextmanager
def _bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="periplus-cases-") as home:
        folder = Path(home) / "cases"
        shutil.copytree(FOLDER, folder, copy_function=shutil.copyfile)
        folder.chmod(0o755)
        state = {"HOME": home, "XDG_STATE_HOME": f"{home}/state", "PYTHONPATH": str(ROOT)}
        with mock.patch.dict(os.environ, state), contextlib.chdir(folder), periplus.up(folder) as client:
            yield Bench(folder, client)
