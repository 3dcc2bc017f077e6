"""Claim: the ledger keeps every trained token within the bound, discards almost nothing, does not teach brevity, and
keeps the trainer as busy as the bound allows.

A discrete-event simulation (bench/staleness) has 8 regions on six continents with measured round-trip times, and
real response lengths in groups of 8. Generation capacity is 1.2 times the need, and one worker in ten dies per hour.
The need is the tokens of a step over the step's time. A case sets the step's time by the ratio of the mean time of a
group, without load, to it. Our policy is the trainer's own `trainer.ledger.machine.Ledger`, which is told the simulated
events. With the same workers, links and lengths it is compared with AReaL's formula, prime-rl's sweep, a synchronous
loop, and two simpler bounds: dropping late arrivals, and holding the trainer back.

A step takes 64 groups or 512 samples, the middle of what is published for group-relative methods (128 to 8192). The
window is 200 steps (12,800 groups) after 20 of warm-up, so that a rate is known to about one percent; other policies
have 100 steps. Discards and length bias are exact for the window's groups. bench/staleness/measure.py says how each
figure is computed.

First the simulator is checked on a case in closed form. The simpler bounds are also run on the problems of aime24
alone, for which earlier figures exist: at bound 2 and ratios 1 and 1.5, dropping late arrivals lost 10 and 14 % and
shortened the trained samples by 5 %, and holding kept the trainer busy for 0.95 and 0.81 of the time.

The last line is one JSON object, and everything else goes to stderr.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench import provenance
from bench.staleness.lengths import Lengths, Source, drawn, sources
from bench.staleness.measure import IDEAL_STEPS, Outcome, Window, best_rate, simulate
from bench.staleness.ours import Ours
from bench.staleness.peers import Peer, Rule
from bench.staleness.simulator import Scheduler, Simulator
from bench.staleness.world import (
    DEATHS_PER_HOUR,
    REGIONS,
    TOKENS_PER_S,
    TRAINER_REGION,
    WORKERS_PER_REGION,
    Link,
    Outages,
    World,
    deal_slots,
    read_links,
)

DATA = Path(__file__).parents[3] / "shared" / "data"
RATIOS = (0.5, 0.8, 1.0, 1.5, 2.0)
"""Mean time of a group without load, over the time of a step."""
BOUNDS = (1, 2, 4)
"""Staleness bounds, in versions."""
CAPACITY = 1.2
"""Capacity of generation over the need."""
LENGTHS = "contests"
"""Source of response lengths: the problems of two contests, 510 groups of nine models. All were evaluated under about
the same limit of length, as a job has one limit."""

MANY = 20_000
"""Number of groups over which a mean or a percentile is taken."""

OURS = "ours"
POLICIES = (OURS, *Rule)
MAX_DISCARDED = 0.01
"""Target: largest fraction of samples or tokens that is discarded."""
MAX_LENGTH_BIAS = 0.01
"""Target: largest relative difference of the mean length trained on to the mean length sampled."""
MIN_BUSY_VS_BEST = 0.95
"""Target: least busy time of the trainer, over that of the best possible policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that determines one simulated run."""

    policy: str
    ratio: float
    bound: int
    data: Path
    window: Window
    lengths: str = LENGTHS
    groups_per_step: int = 64
    group_size: int = 8
    deaths_per_hour: float = DEATHS_PER_HOUR
    outages: Outages | None = None
    seed: int = 1


@cache
def _source(data: Path, name: str) -> Source:
    return sources(data / "response_lengths")[name]()


@cache
def _drawn(data: Path, name: str, group_size: int, num_groups: int) -> npt.NDArray[np.int64]:
    """Draw the lengths [groups, samples] for means, percentiles and the best rate; simulations draw other ones."""
    return drawn(_source(data, name), group_size, num_groups, seed=0)


@cache
def _links(data: Path) -> Mapping[str, Link]:
    return read_links(data / "network_skyplane" / "grid.csv")


def world_of(case: Case) -> World:
    """Return the simulated world that has the case's ratio and capacity."""
    sample_tokens = float(_source(case.data, case.lengths).groups.mean())
    group_s = float(_drawn(case.data, case.lengths, case.group_size, MANY).max(axis=1).mean()) / TOKENS_PER_S
    step_s = group_s / case.ratio
    need_tokens_per_s = case.groups_per_step * case.group_size * sample_tokens / step_s
    regions = tuple(region for region in REGIONS for _ in range(WORKERS_PER_REGION))
    return World(
        links=_links(case.data),
        worker_regions=regions,
        slots=deal_slots(round(CAPACITY * need_tokens_per_s / TOKENS_PER_S), len(regions)),
        tokens_per_s=TOKENS_PER_S,
        sample_s=sample_tokens / TOKENS_PER_S,
        step_s=step_s,
        groups_per_step=case.groups_per_step,
        group_size=case.group_size,
        bound=case.bound,
        deaths_per_hour=case.deaths_per_hour,
        outages=case.outages,
    )


def run(case: Case) -> Outcome:
    """Simulate one case, and return its figures."""
    world = world_of(case)
    source = _source(case.data, case.lengths)
    scheduler: Scheduler = Ours(world) if case.policy == OURS else Peer(Rule(case.policy), world)
    simulator = Simulator(world, Lengths(source, case.group_size, case.seed), scheduler, case.seed)
    num_groups = max(MANY, IDEAL_STEPS * case.groups_per_step)
    best = best_rate(world, _drawn(case.data, case.lengths, case.group_size, num_groups))
    return simulate(simulator, case.window, best)


# ---- what is run -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Cases of a run: the grid of all policies, single variations of ours, and cases with known earlier figures."""

    grid: tuple[Case, ...]
    variations: tuple[tuple[str, Case], ...]
    known: tuple[Case, ...]


def plan(data: Path, *, quick: bool, seed: int, lengths: str) -> Plan:
    """Return the cases of a run. With `quick` they are fewer and shorter."""
    ours_window = Window(warmup=12, steps=60) if quick else Window(warmup=20, steps=200)
    peer_window = Window(warmup=12, steps=30) if quick else Window(warmup=20, steps=100)
    ratios, bounds = ((0.5, 1.0, 2.0), (1, 4)) if quick else (RATIOS, BOUNDS)

    def case(policy: str, ratio: float, bound: int) -> Case:
        window = ours_window if policy == OURS else peer_window
        return Case(policy=policy, ratio=ratio, bound=bound, data=data, window=window, seed=seed, lengths=lengths)

    policies = (OURS, Rule.AREAL, Rule.PRIME_RL, Rule.SYNCHRONOUS) if quick else POLICIES
    grid = tuple(case(policy, ratio, bound) for policy in policies for ratio in ratios for bound in bounds)
    if quick:
        return Plan(grid=grid, variations=(), known=())
    changes: dict[str, Callable[[Case], Case]] = {
        "no deaths": lambda c: replace(c, deaths_per_hour=0.0),
        "ten times the deaths": lambda c: replace(c, deaths_per_hour=10 * DEATHS_PER_HOUR),
        "outages of 60 s": lambda c: replace(c, outages=Outages(every_s=600.0, length_s=60.0)),
        "groups of 1": lambda c: replace(c, group_size=1, groups_per_step=512),
        "8 groups a step": lambda c: replace(c, groups_per_step=8),
        **{f"lengths: {name}": _with_lengths(name) for name in sources(data / "response_lengths") if name != lengths},
    }
    some = tuple(case(OURS, ratio, bound) for ratio in (1.0, 2.0) for bound in (1, 2))
    known = tuple(replace(case(rule, ratio, 2), lengths="aime24") for rule, ratio in KNOWN)
    variations = tuple((name, change(one)) for name, change in changes.items() for one in some)
    return Plan(grid=grid, variations=variations, known=known)


def _with_lengths(name: str) -> Callable[[Case], Case]:
    return lambda case: replace(case, lengths=name)


def run_all(cases: Sequence[Case], jobs: int) -> list[Outcome]:
    """Simulate all cases and return their figures in order. Progress goes to stderr."""
    begun_s = time.monotonic()
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(jobs) as pool:
        for done, (case, outcome) in enumerate(zip(cases, pool.map(run, cases), strict=True), start=1):
            outcomes.append(outcome)
            elapsed_s = time.monotonic() - begun_s
            print(f"[{elapsed_s:4.0f} s] {done}/{len(cases)} {_line(case, outcome)}", file=sys.stderr, flush=True)
    return outcomes


# ---- right before it is measured -------------------------------------------------------------------------------------


def check_simulator() -> None:
    """Check the simulator on a synchronous loop in one region with equal lengths.

    There a step takes exactly the time of training, of new weights (encode and load), of generation, and of the
    delivery of the samples. Raises: AssertionError.
    """
    world = World(
        links={"here": Link(one_way_s=0.0, throughput_gbit_per_s=1.0)},
        worker_regions=("here",) * 4,
        slots=(8,) * 4,
        tokens_per_s=10.0,
        sample_s=7.0,
        step_s=5.0,
        groups_per_step=4,
        group_size=8,
        bound=0,
        deaths_per_hour=0.0,
        encode_s=1.0,
        load_s=2.0,
        relay_s=0.0,
    )
    source = Source(name="equal", groups=np.full((1, 8), 70))
    simulator = Simulator(world, Lengths(source, 8, 0), Peer(Rule.SYNCHRONOUS, world), 0)
    simulator.run(6)
    periods_s = np.diff([step.begin_s for step in simulator.steps])
    expected_s = 5.0 + 3.0 + 7.0 + 70 * 5.0 * 8 / 0.2e9
    assert np.allclose(periods_s, expected_s, atol=1e-3), f"steps every {periods_s} s, where {expected_s} s are right"


KNOWN = {
    (Rule.DROP, 1.0): ("discarded_samples", 0.10),
    (Rule.DROP, 1.5): ("discarded_samples", 0.14),
    (Rule.HOLD, 1.0): ("busy", 0.95),
    (Rule.HOLD, 1.5): ("busy", 0.81),
}
"""Earlier figures at bound 2 with lengths of aime24, by policy and ratio: (name of the figure, its value)."""


def calibration(known: Sequence[Case], outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """Return rows with the figures of the simpler bounds and the earlier ones."""
    rows: list[dict[str, object]] = []
    for case, outcome in zip(known, outcomes, strict=True):
        name, before = KNOWN[Rule(case.policy), case.ratio]
        here = round(float(getattr(outcome, name)), 4)
        rows.append({**row_of(case, outcome), "figure": name, "before": before, "here": here})
    return rows


# ---- results ---------------------------------------------------------------------------------------------------------


def row_of(case: Case, outcome: Outcome) -> dict[str, object]:
    """Return the figures of one run for the record."""
    figures = {
        "busy": outcome.busy,
        "busy_vs_best": outcome.busy_vs_best,
        "busy_vs_best_without_wait": outcome.busy_vs_best_without_wait,
        "violation_fraction": outcome.violation_fraction,
        "discarded_samples": outcome.discarded_samples,
        "discarded_tokens": outcome.discarded_tokens,
        "length_bias_first": outcome.length_bias_first,
        "length_bias_all": outcome.length_bias_all,
        "staleness_mean": outcome.staleness_mean,
    }
    return {
        "policy": case.policy,
        "ratio": case.ratio,
        "bound": case.bound,
        **{name: round(value, 4) for name, value in figures.items()},
        "staleness_max": outcome.staleness_max,
        "violations": outcome.violations,
        "groups": outcome.num_groups,
        "open_at_the_end": outcome.num_open,
        "deaths": outcome.num_deaths,
    }


def reach_of(outcomes: Sequence[Outcome], varied: Sequence[Outcome]) -> list[dict[str, object]]:
    """Return our worst values over the grid with their targets; violations are counted in the variations too."""
    violations = sum(outcome.violations for outcome in (*outcomes, *varied))
    discarded = max(outcome.discarded for outcome in outcomes)
    bias = max(outcome.length_bias for outcome in outcomes)
    busy = min(outcome.busy_vs_best for outcome in outcomes)
    return [
        _reach("violations", violations, "samples", "==", 0, violations == 0),
        _reach("discarded_fraction_max", discarded, "fraction", "<=", MAX_DISCARDED, discarded <= MAX_DISCARDED),
        _reach("length_bias_max", bias, "fraction", "<=", MAX_LENGTH_BIAS, bias <= MAX_LENGTH_BIAS),
        _reach("trainer_busy_vs_best_min", busy, "fraction", ">=", MIN_BUSY_VS_BEST, busy >= MIN_BUSY_VS_BEST),
    ]


def _reach(name: str, value: float, unit: str, op: str, target: float, ok: bool) -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit, "op": op, "target": target, "ok": ok}


def _line(case: Case, outcome: Outcome) -> str:
    return (
        f"{case.policy:<11} {case.ratio:>4.1f} {case.bound:>5} {outcome.busy:>6.3f} {outcome.busy_vs_best:>7.3f} "
        f"{outcome.busy_vs_best_without_wait:>7.3f} {outcome.violation_fraction:>8.4f} {outcome.discarded:>9.4f} "
        f"{outcome.length_bias_first:>+8.4f} {outcome.staleness_mean:>6.2f} {outcome.staleness_max:>4}"
    )


HEADER = (
    f"{'policy':<11} {'G/T':>4} {'bound':>5} {'busy':>6} {'vs best':>7} {'no wait':>7} {'too old':>8} {'discarded':>9} "
    f"{'lengths':>8} {'age':>6} {'max':>4}"
)


def _config(data: Path, lengths: str, seed: int) -> dict[str, object]:
    case = Case(policy=OURS, ratio=1.0, bound=2, data=data, window=Window(warmup=0, steps=0), lengths=lengths)
    world = world_of(case)
    maxima = _drawn(data, lengths, case.group_size, MANY).max(axis=1)
    return {
        "lengths": lengths,
        "seed": seed,
        "trainer_region": TRAINER_REGION,
        "rtt_ms": {region: round(2e3 * link.one_way_s, 1) for region, link in world.links.items()},
        "weights_s": {region: round(world.weights_s(region), 2) for region in world.links},
        "workers": len(world.slots),
        "tokens_per_s_per_slot": TOKENS_PER_S,
        "capacity": CAPACITY,
        "deaths_per_hour": DEATHS_PER_HOUR,
        "detection_s": world.detection_s,
        "replacement_s": world.replacement_s,
        "groups_per_step": case.groups_per_step,
        "group_size": case.group_size,
        "mean_sample_tokens": round(float(_source(data, lengths).groups.mean()), 1),
        "mean_group_s": round(float(maxima.mean()) / TOKENS_PER_S, 2),
        "group_p99_s": round(float(np.percentile(maxima, 99)) / TOKENS_PER_S, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs, within a minute")
    parser.add_argument("--table", action="store_true", help="a table of all figures on stderr")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with response_lengths and network_skyplane")
    parser.add_argument("--lengths", default=LENGTHS, choices=sorted(sources(DATA)), help="which real lengths")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    check_simulator()
    planned = plan(arguments.data, quick=arguments.quick, seed=arguments.seed, lengths=arguments.lengths)
    cases = [*planned.grid, *(case for _, case in planned.variations), *planned.known]
    outcomes = run_all(cases, arguments.jobs)
    grid, rest = outcomes[: len(planned.grid)], outcomes[len(planned.grid) :]
    varied, known = rest[: len(planned.variations)], rest[len(planned.variations) :]
    ours = [outcome for case, outcome in zip(planned.grid, grid, strict=True) if case.policy == OURS]
    if arguments.table:
        lines = [_line(case, outcome) for case, outcome in zip(planned.grid, grid, strict=True)]
        lines += [f"{_line(case, out)}  {name}" for (name, case), out in zip(planned.variations, varied, strict=True)]
        lines += [f"{_line(case, out)}  lengths: aime24" for case, out in zip(planned.known, known, strict=True)]
        print("\n".join((HEADER, *lines)), file=sys.stderr)
    reach = reach_of(ours, varied)
    record = {
        "bench": "staleness",
        "commit": provenance.commit(),
        "machine": provenance.machine(load),
        "config": {
            "quick": arguments.quick,
            "window": asdict(planned.grid[0].window),
            **_config(arguments.data, arguments.lengths, arguments.seed),
        },
        "results": {
            "grid": [row_of(case, outcome) for case, outcome in zip(planned.grid, grid, strict=True)],
            "variations": [
                {"variation": name, **row_of(case, outcome)}
                for (name, case), outcome in zip(planned.variations, varied, strict=True)
            ],
            "calibration": calibration(planned.known, known),
            "busy_vs_best_without_wait_min": min(outcome.busy_vs_best_without_wait for outcome in ours),
        },
        "reach": reach,
    }
    print(json.dumps(record))
    return 0 if all(row["ok"] for row in reach) else 1


if __name__ == "__main__":
    sys.exit(main())
