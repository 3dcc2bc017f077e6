"""Claim: evaluating every 10 steps makes training at most 1.15 times slower (`eval_slowdown`).

The job is examples/spelling.yaml with fewer steps and a short warm-up: 512 samples a step, and 512 held-out problems an
evaluation, which run in the background. Each pair of runs has one with evaluations between steps and one without, in
alternating order, on one fleet. Timed is what the trainer's phase `training` takes, so that warm-up and the evaluations
before and after training, which both runs have, count for neither. The figure is the ratio of the medians. It is
checked first that each run has its steps, and the evaluations between them that it should have.
"""

import json
import statistics
import tempfile
from pathlib import Path

import periplus
from bench.experiment_cases.case import CaseResult, Figure
from coordinator.client.library.client import Client

JOB = Path(__file__).parents[2] / "examples" / "spelling.yaml"

MOST_SLOWDOWN = 1.15
"""Target of the figure. Set by the project."""

EVERY_STEPS = 10


def training_s(client: Client, steps: int, every_steps: int) -> float:
    """Run the job and return the seconds from the beginning of training to the last step's end."""
    overrides = [f"steps={steps}", f"eval.every_steps={every_steps}", "train.warmup.max_steps=50"]
    job = client.submit(JOB, overrides=[*overrides, "optimizer.warmup_steps=0"])
    job.wait()
    records = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    ends_s = [record["time_s"] for record in records if record["kind"] == "step"]
    assert len(ends_s) == steps, f"{len(ends_s)} steps of {steps}"
    evaluated = sum(record["kind"] == "eval" for record in records)
    # Two of them are before and after training. One that is due while another runs begins later, or is left out.
    assert evaluated == 2 if every_steps == 0 else 2 < evaluated <= 2 + steps // every_steps, f"{evaluated} evaluations"
    (began_s,) = [record["time_s"] for record in records if record.get("text") == "training"]
    return float(ends_s[-1] - began_s)


def measure(*, quick: bool) -> CaseResult:
    """Run the pairs and compare the medians."""
    num_pairs, steps = (1, 20) if quick else (3, 60)
    found: dict[int, list[float]] = {0: [], EVERY_STEPS: []}
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as folder, periplus.up(folder) as client:
        for pair in range(num_pairs):
            for every_steps in sorted(found, reverse=bool(pair % 2)):
                found[every_steps].append(training_s(client, steps, every_steps))
    slowdown = statistics.median(found[EVERY_STEPS]) / statistics.median(found[0])
    figure = Figure(name="eval_slowdown", value=slowdown, unit="ratio", op="<=", target=MOST_SLOWDOWN)
    return CaseResult(
        figures=(figure,),
        config={"pairs": num_pairs, "steps": steps, "every_steps": EVERY_STEPS},
        results={
            "training_s": {
                f"every_steps={every_steps}": [round(value, 2) for value in values]
                for every_steps, values in found.items()
            }
        },
    )
