"""The audit of a run as a pure function: `audit(evidence)` returns a `Report`.

It takes three steps. First the journal is checked line by line against the kept frames (walk.py, batches.py). Then the
files of the run are compared with the journal's outcome (kept_files.py), and the figures that people quote with the
kept samples (quoted.py). Last, the fates of all leases and samples are
added up, for each fork and for the surviving history (account.py). The *surviving history* is that of the newest fork:
its own lines, and those of its ancestors up to the checkpoints that it came from.

No figure is taken from a counter of the trainer's ledger. docs/audit.md says what an audit proves, and what it cannot.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from periplus.audit import kept_files, quoted
from periplus.audit.account import (
    Account,
    DoubtedSamples,
    account,
    dead_steps,
    doubted,
    newest_trained_group,
    unaccounted_for,
)
from periplus.audit.evidence import AUDIT_FILE, Evidence
from periplus.audit.findings import Code, Finding, Findings
from periplus.audit.history import FOREVER, Fork
from periplus.audit.kept_files import SpoolCount
from periplus.audit.quoted import QuotedFigures
from periplus.audit.walk import Walk
from periplus.values.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkReport:
    """Account of one fork, which is one start of a trainer.

    `ended` is the `how` of its `end` line, or empty without one. `survives` says whether any part of the fork belongs
    to the surviving history.
    """

    fork: int
    parent: Policy | None
    first: Policy
    head: Policy
    ended: str
    survives: bool
    account: Account


@dataclass(frozen=True, slots=True, kw_only=True)
class SealReport:
    """The seals of the journal that hold.

    `num_lines` counts the lines from the journal's start that the newest such seal covers. With `is_verified` an
    authority's key was given, and the certificates of these seals were checked against it.
    """

    num_seals: int
    num_keys: int
    num_lines: int
    is_verified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of an audit. `surviving` is the account of the newest fork's history, or None without any fork.

    `num_witnesses` counts the trajectories in the kept frames, `uncommitted` those that no line of the journal points
    at. `doubted` is what the surviving history trained on before a worker was found unsound. `dead_steps` are the steps
    outside of the surviving history. `counts` maps each code to its number of findings, while `findings` holds a
    limited number of each code with their places.
    """

    job_id: str
    bound: int
    num_lines: int
    num_frames: int
    num_witnesses: int
    num_checkpoints: int
    torn_bytes: int
    is_ended: bool
    forks: tuple[ForkReport, ...]
    surviving: Account | None
    doubted: tuple[DoubtedSamples, ...]
    dead_steps: tuple[Policy, ...]
    uncommitted: int
    pruned_results: int
    pruned_checkpoints: int
    spools: tuple[SpoolCount, ...]
    figures: QuotedFigures
    seals: SealReport
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    counts: Mapping[Code, int]

    @property
    def is_clean(self) -> bool:
        return not self.counts


def audit(evidence: Evidence) -> Report:
    """Check a run's evidence and return the report. A contradiction is a finding in it, never an exception."""
    findings = Findings()
    walk = Walk(evidence, findings)
    walk.read(evidence.lines)
    found = kept_files.check(walk, evidence, findings)
    figures = quoted.check(walk.history, evidence, findings)
    spools = kept_files.spools(walk, evidence, findings, found)
    forks = walk.history.forks
    # Group numbers rise over the whole journal, so each fork is checked against the newest group of those before it.
    unaccounted, newest = [], -1
    for fork in forks:
        unaccounted.append(unaccounted_for(fork, newest, findings, f"{AUDIT_FILE}:{fork.at + 1}"))
        newest = max(newest, newest_trained_group(fork))
    # The trainer that started last owns the run: what it cannot see is dead.
    survivor = forks[-1] if forks else None
    surviving = account(list(survivor.segments()), unaccounted[-1]) if survivor else None
    reports = tuple(_of_fork(fork, lost, survivor) for fork, lost in zip(forks, unaccounted, strict=True))
    return Report(
        job_id=survivor.opened.job_id if survivor else "",
        bound=survivor.opened.bound if survivor else 0,
        num_lines=walk.num_lines,
        num_frames=len(evidence.frames),
        num_witnesses=sum(len(frame) for frame in evidence.frames.values()),
        num_checkpoints=len(evidence.checkpoints),
        torn_bytes=walk.torn_bytes,
        is_ended=survivor is not None and bool(survivor.ended),
        forks=reports,
        surviving=surviving,
        doubted=doubted(forks, list(survivor.segments())) if survivor else (),
        dead_steps=dead_steps(forks, survivor) if survivor else (),
        uncommitted=found.uncommitted,
        pruned_results=found.pruned_results,
        pruned_checkpoints=found.pruned_checkpoints,
        spools=spools,
        figures=figures,
        seals=_of_seals(walk, evidence),
        notes=tuple(found.notes),
        findings=tuple(findings.kept),
        counts=dict(findings.counts),
    )


def _of_seals(walk: Walk, evidence: Evidence) -> SealReport:
    seals = walk.seals
    return SealReport(
        num_seals=seals.num_seals,
        num_keys=len(seals.keys),
        num_lines=seals.num_sealed,
        is_verified=bool(evidence.authorities),
    )


def _of_fork(fork: Fork, unaccounted: int, survivor: Fork | None) -> ForkReport:
    survives = survivor is not None and any(fork is other for other, _ in survivor.segments())
    return ForkReport(
        fork=fork.number,
        parent=fork.opened.parent,
        first=Policy(fork.number, fork.lineage.first_version),
        head=fork.head,
        ended=fork.ended,
        survives=survives,
        account=account([(fork, FOREVER)], unaccounted),
    )
