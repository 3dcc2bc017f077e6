"""Completion tokens trained a second, on two cores in all: our whole runtime in one region, and TRL beside it.

Both train the same checkpoint by GRPO, on the same prompts and with the same scorer: 256 completions of up to 32 tokens
a step, in groups of 8, at temperature 1. Both learn at a rate of 1e-6, so that lengths hardly change. The first
steps of each run are left out (compilation, first touches); its rate is the tokens of the others over their time.

TRL runs at each setting: attention, processes (one of two threads, or two ranks of one thread), type, rows of a pass,
and some of these compiled. Ours runs as an operator starts it (bench/engine_cases/runtime.py): a trainer, a worker, an
agent and a coordinator share the two cores. Our engine is tried in both types, as TRL generates in each of its types,
and our trainer plain and compiled. The fastest setting of each side is then measured.

TRL generates as much as it trains in each step. Ours generates ahead, as far as its staleness bound allows. So its
first steps, in which that lead grows, are not counted, and neither are its last ones, in which nothing is left to
generate; `staleness` shows that the lead is the same at both ends. That ours trains on what it sampled is seen from
`mismatch_mean_nats`, the difference between the log-probabilities of engine and trainer on the samples of the newest
version.
"""

import json
import os
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

from bench.engine_cases.models import ENVIRONMENT, PROMPT_TOKENS, write_model
from bench.engine_cases.runtime import run_job, steps_of

SAMPLES = 256
"""Completions of a step."""
GROUP_SIZE = 8
"""Completions of one prompt."""
NEW_TOKENS = 32
"""Largest length of a completion, the end token included."""
PROBLEMS = 2048
"""Problems in the data set."""
LEARNING_RATE = 1e-6
"""Small, so that what is sampled stays as it is."""
DROPPED = 3
"""Steps at the start of a run of TRL that are not counted."""
OUR_DROPPED = 12
"""Steps at the start of ours: layers are compiled in the first, and what was sampled meanwhile is then used up."""
STALENESS = 2
"""The bound of our runs, and the steps at their end that are not counted, less one."""


class OurSetting(NamedTuple):
    """How ours runs: the type in which the torch engine generates, and whether the trainer's layers are compiled.

    The trainer chooses its own type, by the size of the model.
    """

    dtype: str
    compiled: bool

    def __str__(self) -> str:
        return f"engine in {self.dtype}{', trainer compiled' if self.compiled else ''}"


OUR_SETTINGS = tuple(OurSetting(*each) for each in product(("float32", "bfloat16"), (False, True)))


class TrlSetting(NamedTuple):
    """How TRL runs. `rows` are those of a pass, of all ranks together."""

    attention: str
    ranks: int
    dtype: str
    rows: int
    compiled: bool = False

    def __str__(self) -> str:
        name = f"{self.attention}, {self.ranks} x {2 // self.ranks} threads, {self.dtype}, {self.rows} rows"
        return f"{name}, compiled" if self.compiled else name


TRL_SETTINGS = (
    *(TrlSetting(*each) for each in product(("sdpa", "eager"), (1, 2), ("float32", "bfloat16"), (64, 256))),
    *(TrlSetting(*each, "bfloat16", 256, compiled=True) for each in product(("sdpa", "eager"), (1, 2))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Rate of one run, in completion tokens a second, and what it was computed from."""

    tokens_per_s: float
    seconds: tuple[float, ...]
    mean_tokens: float
    mismatch_mean_nats: float | None = None
    staleness: tuple[float, ...] = ()

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "tokens_per_s": round(self.tokens_per_s, 1),
            "seconds_per_step": [round(second, 3) for second in self.seconds],
            "tokens_per_step": round(self.mean_tokens, 1),
        }
        if self.mismatch_mean_nats is not None:
            found["mismatch_mean_nats"] = round(self.mismatch_mean_nats, 5)
        if self.staleness:
            found["staleness"] = list(self.staleness)
        return found


def trl_rate(model: Path, oracle: Path, setting: TrlSetting, num_steps: int, scratch: Path) -> Rate:
    """Run TRL once. `oracle` is the interpreter of its environment. Raises: CalledProcessError if it fails."""
    scratch.mkdir(parents=True, exist_ok=True)
    settings = scratch / "settings.json"
    settings.write_text(
        json.dumps(
            {
                "threads": 2 // setting.ranks,
                "attention": setting.attention,
                "environment": ENVIRONMENT,
                "size": PROBLEMS,
                "model": str(model),
                "samples": SAMPLES,
                "rows": setting.rows // setting.ranks,
                "ranks": setting.ranks,
                "dtype": setting.dtype,
                "compiled": setting.compiled,
                "steps": num_steps,
                "group_size": GROUP_SIZE,
                "new_tokens": NEW_TOKENS,
                "lr": LEARNING_RATE,
                "scratch": str(scratch / "out"),
            }
        )
    )
    root = Path(__file__).parents[2]
    # Ranks meet at a port of their own choice, and the launcher prefixes nothing to what they print.
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(setting.ranks)]
    program = [*(launcher if setting.ranks > 1 else []), "-m", "bench.engine_cases.trl_arm", str(settings)]
    threads = str(2 // setting.ranks)
    done = subprocess.run(
        [str(oracle), *program],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return _rate(found["seconds"], found["tokens"], DROPPED)


def our_rate(model: Path, setting: OurSetting, num_steps: int, scratch: Path) -> Rate:
    """Run our runtime once; `num_steps` are counted. Raises: as `run_job`."""
    job: dict[str, Any] = {
        "name": "engines",
        "model": {"path": str(model)},
        "environment": ENVIRONMENT,
        "data": {"size": PROBLEMS},
        "algorithm": {"name": "grpo", "group_size": GROUP_SIZE},
        "sampling": {"temperature": 1.0, "max_new_tokens": NEW_TOKENS, "prompt_tokens": PROMPT_TOKENS},
        "optimizer": {"lr": LEARNING_RATE},
        "train": {"groups_per_step": SAMPLES // GROUP_SIZE, "compile": setting.compiled},
        "engine": {"name": "torch", "dtype": setting.dtype},
        "staleness": STALENESS,
        "steps": OUR_DROPPED + num_steps + STALENESS + 1,
        "eval": {"num_prompts": 8, "every_steps": 0},
        "checkpoint": {"every_steps": 1000},
    }
    steps = steps_of(run_job(job, scratch))[: OUR_DROPPED + num_steps]
    ends_s = [step["time_s"] for step in steps]
    seconds = [after - before for before, after in pairwise(ends_s)]
    # The first step has no end before it, so it is dropped beside `OUR_DROPPED - 1` others.
    rate = _rate([0.0, *seconds], [step["completion_tokens"] for step in steps], OUR_DROPPED)
    # A step all of whose samples are of older versions has no such figure.
    found = [step["logprob_mismatch_current_mean"] for step in steps if "logprob_mismatch_current_mean" in step]
    return replace(
        rate,
        mismatch_mean_nats=statistics.fmean(found) if found else None,
        staleness=tuple(step["staleness_mean"] for step in steps[OUR_DROPPED:]),
    )


def median(rates: Sequence[Rate]) -> Rate:
    """Return the run with the median rate."""
    middle = statistics.median_low([rate.tokens_per_s for rate in rates])
    return next(rate for rate in rates if rate.tokens_per_s == middle)


def compare(
    name: str,
    folder: Path,
    oracle: Path,
    *,
    num_steps: int,
    num_runs: int,
    settings_tried: bool,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure one size of model: each side at all its settings once, then the fastest setting of each in turns.

    Without `settings_tried` only the first settings are run. `say` is told which run begins.
    """
    model = folder / f"model-{name}"
    num_parameters = write_model(name, model)
    tried = {}
    for number, setting in enumerate(TRL_SETTINGS[: None if settings_tried else 1]):
        say(f"throughput of TRL, {name}, {setting}")
        tried[setting] = trl_rate(model, oracle, setting, num_steps, folder / f"trl-{name}-setting-{number}")
    best = max(tried, key=lambda setting: tried[setting].tokens_per_s)
    ours_tried = {}
    for number, kind in enumerate(OUR_SETTINGS[: None if settings_tried else 1]):
        say(f"throughput of ours, {name}, {kind}")
        ours_tried[kind] = our_rate(model, kind, num_steps, folder / f"ours-{name}-setting-{number}")
    our_best = max(ours_tried, key=lambda kind: ours_tried[kind].tokens_per_s)
    theirs, ours = [], []
    for turn in range(num_runs):
        say(f"throughput of TRL and ours, {name}, run {turn + 1} of {num_runs}")
        theirs.append(trl_rate(model, oracle, best, num_steps, folder / f"trl-{name}-{turn}"))
        ours.append(our_rate(model, our_best, num_steps, folder / f"ours-{name}-{turn}"))
    ratio = median(ours).tokens_per_s / median(theirs).tokens_per_s
    return {
        "parameters": num_parameters,
        "trl_settings": {str(setting): rate.as_json() for setting, rate in tried.items()},
        "trl_fastest": str(best),
        "our_settings": {str(kind): rate.as_json() for kind, rate in ours_tried.items()},
        "our_fastest": str(our_best),
        "trl": [rate.as_json() for rate in theirs],
        "ours": [rate.as_json() for rate in ours],
        "ratio": ratio,
    }


def _rate(seconds: Sequence[float], tokens: Sequence[float], dropped: int) -> Rate:
    kept_s, kept = tuple(seconds[dropped:]), tokens[dropped:]
    return Rate(tokens_per_s=sum(kept) / sum(kept_s), seconds=kept_s, mean_tokens=statistics.fmean(kept))
