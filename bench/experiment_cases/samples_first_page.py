"""Claim: the first page of samples of a run with a million samples is there within 1 s, process start included.

The run directory is made by the product's own writers: frames by the codec into the trainer's store, and blocks by the
trainer's recorder of samples. Its tokenizer has as many tokens and merges as those of Qwen models, since loading it is
part of a page. Token ids, rewards and regions follow from the numbers of a sample alone, so what each page must show is
computed here without reading anything.

First four pages are compared with that, as JSON: the newest step, the worst and the best of all steps, and the worst of
one region. Then each command is timed in a new process, as a table and once as HTML. `samples_first_page_s` is the
largest of the medians. Files are in the page cache, as they are on the machine where a run goes on.
"""

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.experiment_cases.case import CaseResult, Figure
from periplus.codec.frame import CodecId, Frame, pack
from periplus.codec.trajectory import encode
from periplus.job.run_directory import RunDirectory
from periplus.spool.format import Durability
from periplus.spool.spool import Spool
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose, SamplingParams, StopReason, Trajectory
from trainer.disk_wait import DiskWait
from trainer.intake.committed import KeptTrajectory
from trainer.learning.sample_figures import SampleFigures
from trainer.reporting.sample_recorder import SampleRecorder

TARGET_S = 1.0
"""Target: most seconds of wall time."""

REGIONS = ("aws:us-east-1", "azure:westeurope", "gcp:asia-northeast1-a")
NUM_MERGES = 151_387
"""Merges of the tokenizer. With the 256 bytes they make the 151,643 tokens of Qwen2's and Qwen3's."""

PROMPT_TOKENS, COMPLETION_TOKENS = 48, 96
GROUP_SIZE, FRAME_SAMPLES, SIZE = 8, 32, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the run: steps, samples a step, and how often each command is timed."""

    steps: int
    samples_per_step: int
    num_runs: int


def big_tokenizer() -> Tokenizer:
    """Return a byte-level BPE tokenizer with `NUM_MERGES` merges of random pairs."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: number for number, symbol in enumerate(alphabet)}
    tokens, drawn = list(alphabet), random.Random(0)
    merges: list[tuple[str, str]] = []
    letters = [symbol for symbol in alphabet if symbol.isascii() and symbol.isalpha()]
    short = list(letters)
    while len(merges) < NUM_MERGES:
        left, right = drawn.choice(short), drawn.choice(letters)
        if (made := left + right) not in vocab:
            vocab[made] = len(tokens)
            tokens.append(made)
            merges.append((left, right))
            if len(made) < 5:
                short.append(made)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def ids_of(step: int, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return prompt ids, completion ids and log-probabilities of a sample of a step."""
    rng = np.random.default_rng((step, number))
    prompt = np.random.default_rng((step, number // GROUP_SIZE, 7)).integers(256, 256 + NUM_MERGES, PROMPT_TOKENS)
    completion = rng.integers(256, 256 + NUM_MERGES, COMPLETION_TOKENS)
    return prompt.astype(np.int32), completion.astype(np.int32), -rng.random(COMPLETION_TOKENS, np.float32)


def reward_of(step: int, number: int) -> float:
    """Return the reward of a sample: usually 0 or 1, so that there are many ties, and rarely something beyond."""
    seed = (step * 1_000_003 + number * 7919) % 100_003
    return -1.0 - seed / 1e6 if seed < 3 else 2.0 + seed / 1e6 if seed < 6 else float(seed % 2)


def region_of(number: int) -> str:
    """Return the region of a sample's worker."""
    return REGIONS[number // FRAME_SAMPLES % len(REGIONS)]


def trajectory_of(step: int, number: int) -> Trajectory:
    """Return the trajectory of a sample: its first third was sampled by an older policy."""
    prompt, completion, logprobs = ids_of(step, number)
    third = COMPLETION_TOKENS // 3
    return Trajectory(
        lease_id=number,
        group=(step - 1) * 1000 + number // GROUP_SIZE,
        sample=number % GROUP_SIZE,
        item=number,
        purpose=Purpose.TRAIN,
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=logprobs,
        mask=np.ones(COMPLETION_TOKENS, np.bool_),
        policies=(
            PolicyRun(Policy(0, max(0, step - 2)), third),
            PolicyRun(Policy(0, step - 1), COMPLETION_TOKENS - third),
        )
        if step > 1
        else (PolicyRun(Policy(0, 0), COMPLETION_TOKENS),),
        reward=reward_of(step, number),
        stop_reason=StopReason.EOS,
        sampling=SamplingParams(temperature=1.0),
        metadata='{"reward_parts": {"exact": 1.0, "format": 0.5}}',
        worker_id=f"job/{region_of(number)}",
        generation_s=1.0,
    )


def make_run(root: Path, sizes: Sizes) -> RunDirectory:
    """Write the frames and the blocks of all steps, as a trainer does."""
    run = RunDirectory(root / "run")
    run.create()
    workers = {f"job/{region}": region for region in REGIONS}
    disk = DiskWait(asyncio.Event(), lambda phase: None)
    store = Spool.open(run.trajectories, durability=Durability.PROCESS, max_bytes=1 << 50)
    recorder = SampleRecorder(run.samples, workers, big_tokenizer().to_str().encode(), disk)
    for step in range(1, sizes.steps + 1):
        kept = []
        for begin in range(0, sizes.samples_per_step, FRAME_SAMPLES):
            trajectories = [trajectory_of(step, begin + number) for number in range(FRAME_SAMPLES)]
            # A low level: the benchmark is about reading, and the format is the same.
            position = store.append(pack(Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, encode(trajectories, level=1))))
            kept += [KeptTrajectory(t, b"", position, index) for index, t in enumerate(trajectories)]
        figures = [SampleFigures(t.group, t.sample, t.reward, 0.5, 0.01, 0.1) for t in (k.trajectory for k in kept)]
        recorder.step(Policy(0, step), kept, figures)
        if step % 500 == 0:
            print(f"step {step} of {sizes.steps}", file=sys.stderr)
    store.close()
    return run


def expected(sizes: Sizes, *, worst: bool | None, region: str = "", newest: bool = False) -> list[tuple[int, int]]:
    """Return step and number of each sample of the first page, by a plain sort of all samples."""
    steps = range(sizes.steps if newest else 1, sizes.steps + 1)
    found = [
        (reward_of(step, number), step, number)
        for step in steps
        for number in range(sizes.samples_per_step)
        if not region or region_of(number) == region
    ]
    if worst is not None:
        sign = 1 if worst else -1
        # The newer of equal ones comes first; within a step that is the later row.
        found.sort(key=lambda each: (sign * each[0], -each[1], -each[2]))
    return [(step, number) for _, step, number in found[:SIZE]]


def command(run: RunDirectory, *options: str) -> list[str]:
    """Return the command line that shows the first page of a run."""
    return [sys.executable, "-m", "periplus", "job", "samples", str(run.root), f"--size={SIZE}", *options]


def check_page(run: RunDirectory, options: Sequence[str], samples: list[tuple[int, int]], tokenizer: Tokenizer) -> None:
    """Check that the command shows exactly these samples, with their texts and figures."""
    done = subprocess.run(command(run, *options, "-o", "json"), capture_output=True, text=True, check=True)
    shown = json.loads(done.stdout)["samples"]
    assert len(shown) == len(samples), (options, len(shown))
    for tree, (step, number) in zip(shown, samples, strict=True):
        trajectory = trajectory_of(step, number)
        where = (tree["step"], tree["group"], tree["sample"], tree["region"], tree["reward"])
        assert where == (step, trajectory.group, trajectory.sample, region_of(number), trajectory.reward), where
        assert tree["prompt"] == tokenizer.decode(trajectory.prompt_ids.tolist())
        completion = "".join(piece["text"] for piece in tree["completion"])
        assert completion == tokenizer.decode(trajectory.completion_ids.tolist())
        assert [piece["staleness"] for piece in tree["completion"]] == ([1, 0] if step > 1 else [0])
        assert tree["reward_parts"] == {"exact": 1.0, "format": 0.5}
        assert tree["advantage"] == 0.5


def measure(*, quick: bool) -> CaseResult:
    """Make the run, check its pages, and time them."""
    sizes = Sizes(steps=250 if quick else 3907, samples_per_step=256, num_runs=3 if quick else 9)
    pages: dict[str, tuple[list[str], dict[str, Any]]] = {
        "newest step": ([], {"worst": None, "newest": True}),
        "worst of all": (["--worst"], {"worst": True}),
        "best of all": (["--best"], {"worst": False}),
        "worst of a region": (["--worst", f"--region={REGIONS[1]}"], {"worst": True, "region": REGIONS[1]}),
    }
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as folder:
        run = make_run(Path(folder), sizes)
        tokenizer = Tokenizer.from_file(str(run.samples / "tokenizer.json"))
        for options, wanted in pages.values():
            check_page(run, options, expected(sizes, **wanted), tokenizer)
        timed = {name: options for name, (options, _) in pages.items()} | {"worst as html": ["--worst", "-o", "html"]}
        wall_s = {name: timings(command(run, *options), sizes.num_runs) for name, options in timed.items()}
        stored_mb = {
            folder.name: sum(path.stat().st_size for path in folder.iterdir()) / 1e6
            for folder in (run.trajectories, run.samples)
        }
    medians = {name: statistics.median(times) for name, times in wall_s.items()}
    return CaseResult(
        figures=(Figure(name="samples_first_page_s", value=max(medians.values()), unit="s", op="<=", target=TARGET_S),),
        config=asdict(sizes) | {"samples": sizes.steps * sizes.samples_per_step, "tokenizer_merges": NUM_MERGES},
        results={
            "median_s": {name: round(value, 3) for name, value in medians.items()},
            "wall_s": {name: [round(value, 3) for value in times] for name, times in wall_s.items()},
            "stored_mb": {name: round(value, 1) for name, value in stored_mb.items()},
        },
    )


def timings(command_line: Sequence[str], num_runs: int) -> list[float]:
    """Return the wall seconds of each of several runs of a command, after one that is not counted."""
    found = []
    for _ in range(num_runs + 1):
        started_s = time.perf_counter()
        subprocess.run(command_line, capture_output=True, check=True)
        found.append(time.perf_counter() - started_s)
    return found[1:]
