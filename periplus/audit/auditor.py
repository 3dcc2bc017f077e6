"""An audit: evidence in, report out. Pure; nothing is read from a counter that a ledger kept.

The journal is walked line by line with the frames as witnesses (walk.py, batches.py), then what lies on disk is held
against what the journal came to (kept.py), then everything leased is added up, for each fork and for the history that
survives (account.py). docs/audit.md says what this proves, and what it cannot.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from periplus.audit import kept
from periplus.audit.account import Account, account, dead_steps, newest_trained_group, unaccounted_for
from periplus.audit.evidence import AUDIT_FILE, Evidence
from periplus.audit.findings import Code, Finding, Findings
from periplus.audit.history import FOREVER, Fork
from periplus.audit.kept import SpoolCount
from periplus.audit.walk import Walk
from periplus.values.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkReport:
    """One start of a trainer. `ended`: how, empty if no `end` line says so; `survives`: in part at least."""

    fork: int
    parent: Policy | None
    first: Policy
    head: Policy
    ended: str
    survives: bool
    account: Account


@dataclass(frozen=True, slots=True, kw_only=True)
class SealReport:
    """The trainers' signatures that hold. `num_lines`: of the journal, from its start, that the newest one covers;
    `is_verified`: an authority's key was given, and each signer's certificate is of that authority."""

    num_seals: int
    num_keys: int
    num_lines: int
    is_verified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an audit found. `surviving`: of the newest fork's history; None for a journal without any fork."""

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
    dead_steps: tuple[Policy, ...]
    uncommitted: int
    pruned_results: int
    pruned_checkpoints: int
    spools: tuple[SpoolCount, ...]
    seals: SealReport
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    counts: Mapping[Code, int]

    @property
    def is_clean(self) -> bool:
        return not self.counts


def audit(evidence: Evidence) -> Report:
    """Check everything that can be checked. Raises nothing of its own: what is wrong is a finding."""
    findings = Findings()
    walk = Walk(evidence, findings)
    walk.read(evidence.lines)
    found = kept.check(walk, evidence, findings)
    spools = kept.spools(walk, evidence, findings)
    forks = walk.history.forks
    unaccounted, newest = [], -1
    for fork in forks:
        unaccounted.append(unaccounted_for(fork, newest, findings, f"{AUDIT_FILE}:{fork.at + 1}"))
        newest = max(newest, newest_trained_group(fork))
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
        dead_steps=dead_steps(forks, survivor) if survivor else (),
        uncommitted=found.uncommitted,
        pruned_results=found.pruned_results,
        pruned_checkpoints=found.pruned_checkpoints,
        spools=spools,
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
