"""Claim: GSM8K with a Qwen checkpoint is a file of at most 25 lines (figure `lines_to_gsm8k`).

Counted are the lines of examples/gsm8k.yaml that a user writes: all that are neither blank nor a comment. The file is
checked as a job first, so that a short file which does not run does not count.
"""

from pathlib import Path

from bench.experiment_cases.case import CaseResult, Figure
from periplus.job.job_file import load_job

RECIPE = Path(__file__).parents[2] / "examples" / "gsm8k.yaml"

MOST_LINES = 25
"""Target of the figure, in lines. Set by the project: what a reader takes in at one look."""


def measure(*, quick: bool) -> CaseResult:
    """Return the number of lines of the recipe; `quick` changes nothing."""
    del quick
    job = load_job(RECIPE)
    assert any(entry.weight for entry in job.reward.entries), "the recipe has no reward"
    lines = RECIPE.read_text().splitlines()
    written = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    figure = Figure(name="lines_to_gsm8k", value=len(written), unit="lines", op="<=", target=MOST_LINES)
    return CaseResult(figures=(figure,), results={"lines_in_all": len(lines)})
