"""`make chaos`: breaks a fleet of real processes, fault by fault, and sees what becomes of its job.

Each round has a fleet of its own: a coordinator and three regions behind an emulated network, and one job. Its faults
come one after the other, in an order and after pauses that `--seed` chooses. After each one the job must train on, in
the same fork or, where the trainer itself died, in the next. After each round the audit must be clean, and no process
and no port may be left.

The table says what was seen: when the job was first said to be otherwise than usual, and how; the longest time between
two steps; how long after the end of the fault a step came (in the next fork, where there is one); and what work was
lost. `--quick` tries a part in one round. The last line is one JSON object; messages go to stderr.
"""

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from bench.provenance import commit, machine, say
from tests.chaos.faults import DISKS, LOST, REPLICATED, ROUNDS, Fault
from tests.chaos.watch import Watch, watching
from tests.support.processes.operated_fleet import FAR, HOME, OperatedFleet, wait_for
from tests.support.small_disk import small_disk

SETTLE_STEPS = 8
"""Steps before and after each fault, in which the job is as always."""

RECOVERY_S = 180.0
"""Seconds within which the job must train again. Chosen by hand: a busy machine starts processes slowly."""

JOB = ("steps=100000", "staleness=2", "checkpoint.every_steps=20", "train.warmup.max_steps=12", "eval.every_steps=0")
DISK_KIB = 96 << 10
RTT_MS = 10.0
"""So near that the planner uses every region, also when a busy machine measures slower links."""

MOST_DELAY_S = 5.0
"""Longest wait before a fault, so that it comes at another moment each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was seen of one fault. None: nothing."""

    name: str
    what: str
    said_after_s: float | None
    said: str
    longest_pause_s: float
    back_after_s: float
    repeated_steps: int
    dropped_samples: int


def tried(fleet: OperatedFleet, fault: Fault, dice: random.Random) -> Row:
    """Let a fault happen. Raises: AssertionError if the job does not do what it must."""
    time.sleep(dice.uniform(0.0, MOST_DELAY_S))
    with watching(fleet) as watch:
        wait_for(lambda: bool(watch.words), RECOVERY_S, "the state of the job")
        known = fleet.steps()[-1]
        struck_s = time.time()
        fault.strike(fleet)
        healed_s = time.time()

        def back_s() -> float | None:
            fork = known["fork"] + 1 if fault.next_fork else known["fork"]
            return next((step.at_s for step in watch.steps if step.fork == fork and step.at_s > healed_s), None)

        wait_for(lambda: back_s() is not None, RECOVERY_S, f"a step after {fault.name}")
        fleet.wait_for_steps(SETTLE_STEPS)
        back = back_s()
        assert back is not None
        forks = {step.fork for step in watch.steps if step.at_s > healed_s}
        expected = known["fork"] + fault.next_fork
        assert max(forks) == expected, f"fork {max(forks)} in place of {expected}"
        wait_for(lambda: fleet.job_state() == "running", RECOVERY_S, "the job to run")
        seen = [words for at_s, words in watch.words if at_s > struck_s]
        assert not fault.says or any(fault.says in words for words in seen), f"not said: {fault.says!r}, but {seen}"
    return _row(fault, watch, struck_s, back - healed_s, expected)


def _row(fault: Fault, watch: Watch, struck_s: float, back_after_s: float, fork: int) -> Row:
    said = watch.first_words_s(struck_s)
    last = max((step.version for step in watch.steps if step.fork < fork), default=0)
    first = min(step.version for step in watch.steps if step.fork == fork)
    return Row(
        name=fault.name,
        what=fault.what,
        said_after_s=said[0] - struck_s if said else None,
        said=said[1] if said else "",
        longest_pause_s=watch.longest_pause_s(struck_s),
        back_after_s=back_after_s,
        repeated_steps=max(0, last - first + 1) if fault.next_fork else 0,
        dropped_samples=sum(step.num_dropped for step in watch.steps if step.at_s > struck_s),
    )


@contextlib.contextmanager
def disks(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Mount a small file system for each of these directories."""
    with contextlib.ExitStack() as mounted:
        for name in names:
            mounted.enter_context(small_disk(folder / name, num_kib=DISK_KIB))
        yield


def round_of(name: str, faults: Sequence[Fault], dice: random.Random, rows: list[Row]) -> str:
    """Try faults on one fleet, and add a row for each to `rows`. Return what went wrong, or an empty text."""
    trying = "start"
    with tempfile.TemporaryDirectory(prefix="periplus-chaos-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        own_disks = ("work", f"state-{HOME}", f"state-{FAR}") if {*faults} & {*DISKS} else ()
        try:
            with disks(folder, own_disks):
                fleet = OperatedFleet(folder, RTT_MS)
                try:
                    say(f"{name}: the fleet is there")
                    replicas = (*REPLICATED, f"checkpoint.replicate={FAR}")
                    fleet.train((*JOB, *(replicas if {*faults} & {*LOST} else ())), SETTLE_STEPS)
                    for fault in faults:
                        trying = fault.name
                        rows.append(tried(fleet, fault, dice))
                        say(f"{fault.name}: {json.dumps(asdict(rows[-1]))}")
                    trying = "end"
                    fleet.end_job()
                finally:
                    fleet.stop()
                fleet.assert_nothing_is_left()
        except pytest.skip.Exception as why:
            say(f"{name}: not tried: {why}")
        except (AssertionError, OSError, ValueError) as error:
            logs = [f"== {log.name}\n{log.read_text()[-3000:]}" for log in folder.glob("*.log")]
            say(f"{name}, {trying}: {error}\n" + "\n".join(logs))
            return f"{trying}: {error}"
    return ""


def table(rows: Sequence[Row]) -> str:
    head = "| fault | said after s | longest pause s | back after s | steps repeated | samples dropped | said |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for row in rows:
        said = "-" if row.said_after_s is None else f"{row.said_after_s:.1f}"
        figures = f"{said} | {row.longest_pause_s:.1f} | {row.back_after_s:.1f}"
        lines.append(f"| {row.what} | {figures} | {row.repeated_steps} | {row.dropped_samples} | {row.said} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a part of the faults, on one fleet")
    parser.add_argument("--seed", type=int, help="order and moments of the faults; a new one each time by default")
    names = [fault.name for faults in ROUNDS.values() for fault in faults]
    parser.add_argument("--only", action="append", choices=[*ROUNDS, *names], help="this round or fault")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    say(f"seed {seed}")
    dice, about, begun_s = random.Random(seed), machine(), time.monotonic()
    rounds: dict[str, list[Fault]] = {name: list(faults) for name, faults in ROUNDS.items()}
    if arguments.quick:
        rounds = {"quick": [fault for faults in ROUNDS.values() for fault in faults if fault.is_quick]}
    if only := arguments.only:
        rounds = {
            name: chosen
            for name, faults in rounds.items()
            if (chosen := [fault for fault in faults if name in only or fault.name in only])
        }
    rows: list[Row] = []
    wrong: list[str] = []
    for name, faults in rounds.items():
        dice.shuffle(faults)
        wrong += filter(None, [round_of(name, faults, dice, rows)])
    print(table(rows))
    record = {"bench": "chaos", "commit": commit(), "machine": about, "seed": seed, "wrong": wrong}
    print(json.dumps(record | {"rows": [asdict(row) for row in rows]}))
    took = f"{time.monotonic() - begun_s:.2f}s"
    print(f"==== {len(rows)} passed, {len(wrong)} failed in {took} ====", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
