"""A seeded, plausible run over three regions, with which the views are tested."""

import math
import random
from collections.abc import Iterator

from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.view.state import (
    Event,
    FleetSeen,
    JobChanged,
    LinkSeen,
    RecordSeen,
    RegionSeen,
    TaskRole,
    TaskSeen,
)
from periplus.view.summary import Summary, WanCounter

REGIONS = ("aws:us-east-1", "azure:westeurope", "gcp:asia-northeast1-a")
RTT_S = {(0, 1): 0.083, (0, 2): 0.152, (1, 2): 0.224}
BOUND = 4
STEPS = 120
WARMUP_STEPS = 60
FULL_WEIGHTS_BYTES = 1_742_000
CONFIG = {
    "name": "chain-sum",
    "model": {"preset": "tiny", "hidden_size": 128, "num_layers": 4},
    "algorithm": {"name": "grpo", "group_size": 8, "clip_low": 0.2, "clip_high": 0.28},
    "staleness": {"bound": BOUND, "pipeline_depth": 2},
    "optimizer": {"name": "adamw", "lr": 3e-4},
    "steps": STEPS,
    "seed": 7,
}
PLAN = {
    "schema": "periplus.plan/1",
    "tasks": [
        {"role": "trainer", "region": REGIONS[0]},
        {"role": "rollout", "region": REGIONS[0]},
        {"role": "rollout", "region": REGIONS[1]},
        {"role": "rollout", "region": REGIONS[2]},
    ],
}


def regions() -> tuple[RegionSeen, ...]:
    roles = [(TaskRole.TRAINER, TaskRole.ROLLOUT), (TaskRole.ROLLOUT,), (TaskRole.ROLLOUT,)]
    return tuple(
        RegionSeen(
            name=name,
            state="ready",
            num_cores=2,
            memory_bytes=8_000_000_000,
            tasks=tuple(TaskSeen(task_id=f"{role}-{i}", role=role, state="running") for role in roles[i]),
        )
        for i, name in enumerate(REGIONS)
    )


def events(seed: int = 7, steps: int = STEPS) -> Iterator[Event]:
    """Yield the run's events in order: job, phases, warm-up, evaluations, steps with the fleet, and the summary."""
    rng = random.Random(seed)
    yield JobChanged(job_id="job-4f1c9e", name="chain-sum", state="starting")
    yield fleet(0.0, 0)
    yield JobChanged(job_id="job-4f1c9e", name="chain-sum", state="running")
    time_s = 1.2
    yield _seen(RecordKind.PHASE, 0, time_s, text="warmup")
    for i in range(1, WARMUP_STEPS + 1):
        time_s += 0.14
        yield _seen(
            RecordKind.WARMUP, 0, time_s, {"step": i, "loss": 3.1 * math.exp(-i / 18) + 0.42 + rng.gauss(0, 0.05)}
        )
    yield _seen(RecordKind.PHASE, 0, time_s, text="training")
    yield _eval(0, time_s, 0.318, "before")
    for step in range(1, steps + 1):
        record = _step(rng, step, time_s)
        time_s = record.time_s
        yield RecordSeen(record)
        yield fleet(time_s, step)
        if step % 30 == 0:
            label = "after" if step == steps else "during"
            yield _eval(step, time_s, 0.318 + 0.43 * _progress(step) + rng.gauss(0, 0.008), label)
    yield _seen(RecordKind.SUMMARY, steps, time_s, dict(summary().values()))
    yield JobChanged(job_id="job-4f1c9e", name="chain-sum", state="succeeded")


def records(seed: int = 7) -> list[Record]:
    return [event.record for event in events(seed) if isinstance(event, RecordSeen)]


def last_fleet() -> FleetSeen:
    return [event for event in events() if isinstance(event, FleetSeen)][-1]


def summary() -> Summary:
    return Summary(
        accuracy_before=0.318,
        accuracy_after=0.738,
        warmup_s=8.4,
        warmup_examples=3840,
        wall_s=192.6,
        steps=STEPS,
        tokens_per_s=2914.0,
        wan_bytes=14_820_000,
        wan_bytes_from=WanCounter.GATEWAYS,
        wan_bytes_full_weights=497_400_000,
        staleness_max=3,
        staleness_bound=BOUND,
        staleness_violations=0,
        weight_digest_mismatches=0,
        regions=REGIONS,
        weights_ratio=47.25,
        delta_density=0.125,
        delta_bits_per_change=9.8,
        weight_fallbacks=2,
        pause_s=0.0032,
        problems_train=8096,
        problems_left_out=64,
    )


def fleet(at_s: float, step: int) -> FleetSeen:
    links = []
    for (i, j), rtt_s in RTT_S.items():
        for src, dst in ((i, j), (j, i)):
            weights = 41_000 * step if src == 0 else 1_800 * step
            trajectories = 21_500 * step * (1.3 if src == 1 else 1.0) if dst == 0 else 0
            capacity = 4.1e8 / (1 + 6 * rtt_s) * (1 if src < dst else 0.83)
            links.append(
                LinkSeen(
                    src=REGIONS[src],
                    dst=REGIONS[dst],
                    rtt_s=rtt_s,
                    throughput_bits_per_s=capacity,
                    sent_bytes=int(weights + trajectories) + 900,
                )
            )
    return FleetSeen(regions=regions(), links=tuple(links), at_s=at_s)


def _progress(step: int) -> float:
    return 1 / (1 + math.exp(-(step - 45) / 15)) - 1 / (1 + math.exp(3))


def _step(rng: random.Random, step: int, time_s: float) -> Record:
    tokens = rng.randint(4000, 4800)
    step_s = rng.uniform(1.25, 1.7)
    train_s = step_s * rng.uniform(0.52, 0.62)
    shares = [0.58, 0.29, 0.1, 0.03] if step > 3 else [1.0]
    staleness = {k: int(tokens * share) for k, share in enumerate(shares)}
    return Record(
        kind=RecordKind.STEP,
        policy=Policy(0, step),
        time_s=time_s + step_s,
        staleness_tokens=staleness,
        values={
            "step": step,
            "steps_total": STEPS,
            "reward_mean": 0.3 + 0.46 * _progress(step) + rng.gauss(0, 0.035),
            "reward_std": 0.4,
            "loss": 0.02 * math.exp(-step / 50) + rng.gauss(0, 0.006),
            "grad_norm": 0.8 + rng.gauss(0, 0.1),
            "clip_fraction": 0.03 + rng.gauss(0, 0.005),
            "clip_fraction_low": 0.018,
            "clip_fraction_high": 0.012,
            "cut_fraction": 0.006,
            "importance_weight": 1.0,
            "importance_weight_max": 2.6,
            "importance_effective_share": 0.97,
            "entropy": 0.4 + 1.4 * math.exp(-step / 40),
            "completion_tokens_mean": 16.5 + 2 * _progress(step),
            "completion_tokens_max": 24 + step % 7,
            "truncated_fraction": 0.05 * math.exp(-step / 20),
            "reward_part/exact_mean": 0.25 + 0.46 * _progress(step),
            "reward_part/format_mean": 0.6 + 0.3 * _progress(step),
            "logprob_mismatch_current_mean": 0.0021 + 0.0002 * math.sin(step),
            "logprob_mismatch_stale_mean": 0.011 + 0.001 * math.cos(step),
            **{f"tokens_per_s_region/{name}": tokens / step_s / len(REGIONS) for name in REGIONS},
            "approx_kl": max(0.0001, 0.0016 + 0.0012 * math.sin(step / 17) + rng.gauss(0, 0.0003)),
            "mean_ratio": 1.0 + rng.gauss(0, 0.004),
            "lr": 3e-4,
            "num_samples": 256,
            "completion_tokens": tokens,
            "step_s": step_s,
            "wait_s": step_s - train_s - 0.06,
            "train_s": train_s,
            "publish_s": 0.06,
            "encode_s": 0.02 + 0.002 * math.sin(step),
            "transfer_s": 0.05 + 0.005 * math.sin(2 * step),
            "apply_s": 0.004,
            "pause_s": 0.003 + 0.0002 * math.sin(3 * step),
            "tokens_per_s": tokens / step_s,
            "delta_bytes": 41_000 + rng.gauss(0, 2500) + 30_000 * math.exp(-step / 10),
            "full_weights_bytes": FULL_WEIGHTS_BYTES,
            "trajectory_bytes": 60_000 + rng.gauss(0, 2000),
            "trajectory_json_bytes": 640_000 + rng.gauss(0, 9000),
            "staleness_max": max(staleness),
            "staleness_mean": 0.58,
            "staleness_bound": BOUND,
            "staleness_violations": 0,
            "dropped_samples": 0,
            "weight_digest_mismatches": 0,
        },
    )


def _eval(step: int, time_s: float, accuracy: float, label: str) -> RecordSeen:
    values = {"accuracy": accuracy, "num_prompts": 512, "eval_s": 1.1}
    return _seen(RecordKind.EVAL, step, time_s, values, label)


def _seen(
    kind: RecordKind, version: int, time_s: float, values: dict[str, float] | None = None, text: str = ""
) -> RecordSeen:
    return RecordSeen(Record(kind=kind, policy=Policy(0, version), time_s=time_s, values=values or {}, text=text))
