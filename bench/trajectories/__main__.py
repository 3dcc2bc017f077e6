"""Claim: a sampled token takes at most 5 bytes, its log-probability exact, and a core decodes and checks 1 GB/s.

A frame is a group of 8 samples of one prompt. Prompts are those of MATH-500. Ids and log-probabilities are drawn from a
small language model that is trained here on `math_prompts` (language_model.py describes its limits).
Lengths are those of real groups of 8 samples of reasoning models (`response_lengths/reasoning_eval_lengths.csv`). All
formats get the same records, with each prompt once per group.

First every format must return its input: ours bit for bit, through the validation that every receiver runs. Then bytes
are counted and decoding is timed, over all frames in turn, in CPU seconds (so other programs do not count), as the
median of several passes. A gigabyte is 10^9 bytes of plain columns: u32 id, f32 log-probability and a mask bit, which
are 8.125 bytes per completion token.

The codec's default level of compression meets all targets. Every other level, sharper and flatter models, short
answers, and episodes with tool output are measured too. The model and its samples are cached; the first full run takes
five minutes of CPU.

`ingest_tokens_per_s` is over wall time between two processes on loopback, the median of several runs (ingest.py). The
last line is one JSON object.
"""

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import provenance
from bench.trajectories import ingest
from bench.trajectories import language_model as lm
from bench.trajectories.peers import compressed, known_figure, peers
from periplus.codec.trajectory import LEVEL, decode_columns, encode, stored_bytes
from periplus.values.policy import Policy
from periplus.values.trajectories import validate_all
from periplus.values.trajectory import (
    PolicyRun,
    Purpose,
    SamplingParams,
    StopReason,
    Trajectory,
    TrajectoryLimits,
    content_digest,
    read_only,
    token_ids,
)

MAX_BYTES_PER_TOKEN = 5.0
"""Target: most bytes per sampled token."""
MIN_DECODE_GBYTES_PER_S = 1.0
"""Target: least rate of decoding and validation on one core, in GB/s of plain columns."""
MIN_INGEST_TOKENS_PER_S = 10_000_000
"""Target: least tokens per second that a trainer takes in."""

GROUP_SIZE = 8
COLUMN_BYTES = 8.125
"""Bytes of a completion token in plain columns: u32 id, f32 log-probability, one bit of mask."""
MAX_CONTENT_BYTES = 64 << 20
LIMITS = TrajectoryLimits(vocab_size=lm.VOCAB_SIZE, max_prompt_tokens=4096, max_completion_tokens=1 << 17)
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
REASONING = "response_lengths/reasoning_eval_lengths.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    train_steps: int
    groups: int
    side_groups: int  # of each variation
    sharpness: tuple[float, ...]  # of the variations; the claim is about 1
    levels: tuple[int, ...]
    passes: int
    peer_passes: int
    ingest_frames: int
    ingest_runs: int
    seed: int = 0


FULL = Config(
    train_steps=300,
    groups=8,
    side_groups=2,
    sharpness=(0.7, 1.6, 2.5, 4.0),
    levels=(1, 3, 6, 9, 12, 15, 19),
    passes=101,
    peer_passes=3,
    ingest_frames=2000,
    ingest_runs=5,
)
QUICK = Config(
    train_steps=20,
    groups=2,
    side_groups=0,
    sharpness=(),
    levels=(3, LEVEL),
    passes=51,
    peer_passes=1,
    ingest_frames=600,
    ingest_runs=1,
)

Group = tuple[Trajectory, ...]


# ---- records ---------------------------------------------------------------------------------------------------------


def real_groups(data: Path, rng: np.random.Generator, count: int) -> list[list[int]]:
    """Return the completion lengths of `count` groups, each of samples of one problem by one model.

    Raises: SystemExit if the table does not exist.
    """
    path = data / REASONING
    if not path.is_file():
        raise SystemExit(f"{path} is not there; name the folder that holds response_lengths with --data")
    by_problem: dict[tuple[str, ...], list[int]] = {}
    for line in path.read_text().splitlines()[1:]:
        model, dataset, problem, _, _, _, completion_tokens, _ = line.split(",")
        by_problem.setdefault((model, dataset, problem), []).append(int(completion_tokens))
    groups = [lengths for lengths in by_problem.values() if len(lengths) == GROUP_SIZE]
    groups.sort(key=sum)
    # Take one group of each quantile, so that a few groups have the mean and the spread of all.
    places = (np.arange(count) + 0.5) / count * len(groups)
    return [groups[int(place)] for place in rng.permutation(places)]


class Source:
    """Source of records: it trains the model once and samples from it. Model and samples are kept in the cache."""

    def __init__(self, config: Config, data: Path, cache: Path) -> None:
        self._config, self._cache = config, cache
        self.corpus = lm.read_corpus(data)
        self._model: lm.LanguageModel | None = None
        cache.mkdir(parents=True, exist_ok=True)

    def groups(self, lengths: Sequence[Sequence[int]], sharpness: float) -> list[Group]:
        """Return one group of records for each list of lengths. `sharpness` scales the model's logits."""
        flat = [length for group in lengths for length in group]
        asked = f"{self.corpus.digest} {self._config} {sharpness} {flat}"
        path = self._cache / f"records-{hashlib.sha256(asked.encode()).hexdigest()[:16]}.npz"
        prompts = [self.corpus.prompts[i // GROUP_SIZE] for i in range(len(flat))]
        if not path.exists():
            drawn = lm.sample(self.model, prompts, flat, sharpness, self._config.seed)
            ids, logprobs = (np.concatenate(column) for column in zip(*drawn, strict=True))
            np.savez(path, ids=ids, logprobs=logprobs)
        stored = np.load(path)
        ends = np.cumsum(flat)[:-1]
        columns = zip(np.split(stored["ids"], ends), np.split(stored["logprobs"], ends), strict=True)
        records = [record(i, prompts[i], ids, logprobs) for i, (ids, logprobs) in enumerate(columns)]
        return [tuple(records[i : i + GROUP_SIZE]) for i in range(0, len(records), GROUP_SIZE)]

    @property
    def model(self) -> lm.LanguageModel:
        if self._model is None:
            path = self._cache / f"model-{self.corpus.digest}-{self._config.train_steps}-{self._config.seed}.pt"
            if path.exists():
                self._model = lm.LanguageModel().eval()
                self._model.load_state_dict(torch.load(path))
            else:
                self._model = lm.train(self.corpus, self._config.train_steps, self._config.seed)
                torch.save(self._model.state_dict(), path)
        return self._model


def record(place: int, prompt: Any, ids: Any, logprobs: Any) -> Trajectory:
    """Return a sample as a worker would send it. In one of four the policy changed after a third of the tokens."""
    group, sample, num_tokens = place // GROUP_SIZE, place % GROUP_SIZE, len(ids)
    version, swapped_at = 40 + group // 4, num_tokens // 3 if place % 4 == 0 else 0
    runs = [PolicyRun(Policy(0, version - 1), swapped_at), PolicyRun(Policy(0, version), num_tokens - swapped_at)]
    correct = (place * 7) % 3 == 0
    return Trajectory(
        lease_id=1_000_000 + place,
        group=group,
        sample=sample,
        item=(group * 7919) % 500,
        purpose=Purpose.TRAIN,
        prompt_ids=token_ids(prompt),
        completion_ids=read_only(ids, np.int32),
        logprobs=read_only(logprobs, np.float32),
        mask=read_only(np.ones(num_tokens), np.bool_),
        policies=tuple(run for run in runs if run.num_tokens),
        reward=float(correct),
        stop_reason=StopReason.EOS,
        sampling=SamplingParams(temperature=1.0),
        metadata=json.dumps({"dataset": "math500", "correct": correct}),
        worker_id="eu-west/rollout-3",
        generation_s=num_tokens / 61.7,
    )


def with_tool_output(group: Group) -> Group:
    """Return the samples as episodes, in which the last 100 of every 400 tokens came from a tool."""
    changed = []
    for t in group:
        mask = np.arange(len(t.mask)) % 400 < 300
        changed.append(replace(t, mask=mask, logprobs=np.where(mask, t.logprobs, np.float32(0))))
    return tuple(changed)


# ---- bytes and speed -------------------------------------------------------------------------------------------------


def num_sampled(groups: Sequence[Group]) -> int:
    return sum(int(np.count_nonzero(t.mask)) for group in groups for t in group)


def num_completion(groups: Sequence[Group]) -> int:
    return sum(len(t.mask) for group in groups for t in group)


def decode_and_validate(payload: bytes) -> None:
    validate_all(decode_columns(payload, max_content_bytes=MAX_CONTENT_BYTES), LIMITS)


def decode_validate_and_cut(payload: bytes) -> tuple[Trajectory, ...]:
    columns = decode_columns(payload, max_content_bytes=MAX_CONTENT_BYTES)
    validate_all(columns, LIMITS)
    return columns.views()


def decode_cut_and_digest(payload: bytes) -> list[bytes]:
    return [content_digest(t) for t in decode_validate_and_cut(payload)]


def cpu_s(work: Callable[[Any], object], items: Sequence[Any], passes: int) -> float:
    """Return the median CPU time of one pass over the items."""
    times_s = []
    for _ in range(passes):
        begun_s = time.process_time()
        for item in items:
            work(item)
        times_s.append(time.process_time() - begun_s)
    return statistics.median(times_s)


def check(groups: Sequence[Group], payloads: Sequence[bytes]) -> None:
    for group, payload in zip(groups, payloads, strict=True):
        back = decode_validate_and_cut(payload)
        assert back == group, "what came back is not what went in"
        assert list(map(content_digest, back)) == list(map(content_digest, group))


def ours(groups: Sequence[Group], level: int, passes: int) -> dict[str, Any]:
    begun_s = time.process_time()
    payloads = [encode(group, level) for group in groups]
    encode_s = time.process_time() - begun_s
    check(groups, payloads)
    gbytes, tokens = COLUMN_BYTES * num_completion(groups) / 1e9, num_sampled(groups)
    columns = [stored_bytes(payload) for payload in payloads]
    return {
        "bytes_per_sampled_token": sum(map(len, payloads)) / tokens,
        "decode_validate_gbytes_per_s": gbytes / cpu_s(decode_and_validate, payloads, passes),
        "with_trajectory_views_gbytes_per_s": gbytes / cpu_s(decode_validate_and_cut, payloads, passes),
        "with_views_and_digests_tokens_per_s": num_completion(groups)
        / cpu_s(decode_cut_and_digest, payloads, max(passes // 5, 1)),
        "encode_ns_per_token": encode_s / num_completion(groups) * 1e9,
        "column_bytes_per_token": {name: sum(c[name] for c in columns) / tokens for name in columns[0]},
    }


def about(groups: Sequence[Group]) -> dict[str, float]:
    logprobs = np.concatenate([t.logprobs[t.mask] for group in groups for t in group])
    return {
        "frames": len(groups),
        "tokens_per_frame": num_completion(groups) / len(groups),
        "mean_nats_per_token": float(-logprobs.mean()),
        "share_above_99_percent": float((logprobs > -0.01).mean()),
    }


def peers_on(groups: Sequence[Group], passes: int) -> dict[str, dict[str, float]]:
    tokens, results = num_sampled(groups), {}
    for raw in peers():
        for peer in (raw, compressed(raw)):
            begun_s = time.process_time()
            payloads = [peer.encode(group) for group in groups]
            encode_s = time.process_time() - begun_s
            for group, payload in zip(groups, payloads, strict=True):
                for t, found in zip(group, peer.logprobs_of(peer.decode(payload)), strict=True):
                    assert np.array_equal(np.array(found, np.float32), t.logprobs), f"{peer.name} loses bits"
            decode_s = cpu_s(peer.decode, payloads, passes)
            results[peer.name] = {
                "bytes_per_sampled_token": sum(map(len, payloads)) / tokens,
                "decode_gbytes_per_s": COLUMN_BYTES * num_completion(groups) / 1e9 / decode_s,
                "encode_ns_per_token": encode_s / num_completion(groups) * 1e9,
            }
    return results


# ---- ingest ----------------------------------------------------------------------------------------------------------


def measure_ingest(groups: Sequence[Group], config: Config) -> dict[str, Any]:
    """Measure `ingest_tokens_per_s` through gRPC, the ledger's commit and the disk. Return the median run and all."""
    runs = [ingest.measure(groups, config.ingest_frames, LIMITS) for _ in range(config.ingest_runs)]
    runs.sort(key=lambda run: run["ingest_tokens_per_s"])
    return runs[len(runs) // 2] | {"runs": [run["ingest_tokens_per_s"] for run in runs]}


# ---- all of it -------------------------------------------------------------------------------------------------------


def measure(config: Config, data: Path, cache: Path) -> dict[str, Any]:
    rng = np.random.default_rng(config.seed)
    source = Source(config, data, cache)
    groups = source.groups(real_groups(data, rng, config.groups), 1.0)
    results: dict[str, Any] = {
        "records": about(groups) | {"chars_per_token": source.corpus.num_chars / len(source.corpus.ids)},
        "ours": ours(groups, LEVEL, config.passes),
        "peers": peers_on(groups, config.peer_passes),
        "prime_rl_layout_on_a_synthetic_record": known_figure(config.seed),
        "levels": {level: ours(groups, level, max(config.passes // 5, 1)) for level in config.levels},
    }
    if config.side_groups:
        results["variations"] = variations(source, config, data, rng, groups)
    results["ingest"] = measure_ingest(groups, config)
    return results


def variations(
    source: Source, config: Config, data: Path, rng: np.random.Generator, groups: Sequence[Group]
) -> dict[str, Any]:
    lengths = real_groups(data, rng, config.side_groups)
    answers = source.corpus.answer_lengths[: GROUP_SIZE * config.side_groups * 4]
    sets = {f"sharpness {sharpness}": source.groups(lengths, sharpness) for sharpness in config.sharpness}
    sets["short answers (gsm8k's own lengths)"] = source.groups(
        [answers[i : i + GROUP_SIZE] for i in range(0, len(answers), GROUP_SIZE)], 1.0
    )
    sets["a quarter is tool output"] = [with_tool_output(group) for group in groups]
    return {name: about(found) | ours(found, LEVEL, config.passes) for name, found in sets.items()}


def _reach(results: dict[str, Any]) -> list[dict[str, object]]:
    ours_, taken_in = results["ours"], results["ingest"]
    num_bytes, speed = ours_["bytes_per_sampled_token"], ours_["decode_validate_gbytes_per_s"]
    rows = [
        _row("bytes_per_sampled_token", num_bytes, "B", "<=", MAX_BYTES_PER_TOKEN, num_bytes <= MAX_BYTES_PER_TOKEN),
        _row(
            "decode_validate_gbytes_per_s",
            speed,
            "GB/s",
            ">=",
            MIN_DECODE_GBYTES_PER_S,
            speed >= MIN_DECODE_GBYTES_PER_S,
        ),
    ]
    rate = taken_in["ingest_tokens_per_s"]
    ok = rate >= MIN_INGEST_TOKENS_PER_S
    rows.append(_row("ingest_tokens_per_s", rate, "tokens/s", ">=", MIN_INGEST_TOKENS_PER_S, ok))
    return rows


def _row(name: str, value: float, unit: str, op: str, target: float, ok: bool) -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit, "op": op, "target": target, "ok": ok}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return {name: _rounded(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a model hardly trained and few records, within a minute")
    parser.add_argument("--data", type=Path, default=DATA, help="holds math_prompts and response_lengths")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--cache", type=Path, default=home / "periplus" / "bench", help="of the model and its samples")
    arguments = parser.parse_args()
    config = QUICK if arguments.quick else FULL
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    results = measure(config, arguments.data, arguments.cache)
    reach = _reach(results)
    settings = {name: getattr(config, name) for name in Config.__slots__} | {"level": LEVEL}
    print(
        json.dumps(
            {
                "bench": "trajectories",
                "commit": provenance.commit(),
                "machine": provenance.machine(load, numpy=np.__version__, torch=torch.__version__),
                "config": settings,
                "results": _rounded(results),
                "reach": _rounded({"rows": reach})["rows"],
            }
        )
    )
    return 0 if all(row["ok"] for row in reach) else 1


if __name__ == "__main__":
    sys.exit(main())
