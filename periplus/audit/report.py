"""Renderings of an audit's report: a tree of JSON values for programs, and aligned text for people.

The tree holds everything under stable names (schema periplus.audit-report/1). The text is shorter: the evidence, a
table of accounts with a column for the surviving history and for each of the newest forks, and the findings.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, TypeVar

from periplus.audit.account import Account, DoubtedSamples
from periplus.audit.auditor import ForkReport, Report
from periplus.audit.findings import Finding
from periplus.audit.quoted import QuotedFigures
from periplus.view.state import printable

SCHEMA = "periplus.audit-report/1"
"""Schema of the tree."""
SHOWN_PER_CODE = 5
"""Most findings of one code in the text; the tree has more."""

SHOWN_FORKS = 6
"""Most forks, the newest ones, that have a column in the text; the tree has all."""
SHOWN_ROWS = 50
"""Most rows of ages, or of reasons of one kind, in the text; the tree has all."""

Tree = dict[str, Any]
_K = TypeVar("_K")


def report_tree(report: Report) -> Tree:
    """Return the whole report as a tree of JSON values."""
    return {
        "schema": SCHEMA,
        "job_id": report.job_id,
        "clean": report.is_clean,
        "bound": report.bound,
        "surviving": _account_tree(report.surviving) if report.surviving else None,
        "forks": [_fork_tree(fork) for fork in report.forks],
        "doubted": [
            {
                "worker": each.worker_id,
                "why": each.why,
                "samples": each.samples,
                "tokens": each.tokens,
                "first_step": None if each.first is None else str(each.first),
                "last_step": None if each.last is None else str(each.last),
            }
            for each in report.doubted
        ],
        "dead_steps": [str(policy) for policy in report.dead_steps],
        "evidence": {
            "lines": report.num_lines,
            "torn_bytes": report.torn_bytes,
            "ended": report.is_ended,
            "frames": report.num_frames,
            "trajectories": report.num_witnesses,
            "uncommitted": report.uncommitted,
            "results_pruned": report.pruned_results,
            "checkpoints": report.num_checkpoints,
            "checkpoints_pruned": report.pruned_checkpoints,
        },
        "figures": asdict(report.figures),
        "seals": {
            "holding": report.seals.num_seals,
            "keys": report.seals.num_keys,
            "lines": report.seals.num_lines,
            "verified": report.seals.is_verified,
        },
        "spools": [
            {
                "name": spool.name,
                "committed": spool.committed,
                "uncommitted": spool.uncommitted,
                "uncommitted_tokens": spool.uncommitted_tokens,
            }
            for spool in report.spools
        ],
        "notes": list(report.notes),
        "counts": {code.value: count for code, count in sorted(report.counts.items())},
        "findings": [
            {"code": f.code.value, "place": f.place, "message": f.message, "values": dict(f.values)}
            for f in report.findings
        ],
    }


def report_text(report: Report) -> str:
    """Return the report as text for a terminal, shortened."""
    blocks = [_evidence_text(report), _accounts_text(report), _findings_text(report)]
    return "\n\n".join(block for block in blocks if block)


# ---- trees -----------------------------------------------------------------------------------------------------------


def _fork_tree(fork: ForkReport) -> Tree:
    return {
        "fork": fork.fork,
        "parent": None if fork.parent is None else str(fork.parent),
        "first": str(fork.first),
        "head": str(fork.head),
        "ended": fork.ended or None,
        "survives": fork.survives,
        "account": _account_tree(fork.account),
    }


def _account_tree(account: Account) -> Tree:
    abandoned = account.abandoned_tokens
    return {
        "steps": account.steps,
        "steps_not_trained": account.steps_not_trained,
        "leased": account.leased,
        "returned": account.returned,
        "lost": dict(sorted(account.lost.items())),
        "released": account.released,
        "outstanding": account.outstanding,
        "unaccounted": account.unaccounted,
        "completed": account.completed,
        "replayed": account.replayed,
        "accepted": account.accepted,
        "duplicates": account.duplicates,
        "refused": dict(sorted(account.refused.items())),
        "abandoned": {
            "samples": len(abandoned),
            "mean_tokens": sum(abandoned) / len(abandoned) if abandoned else None,
            "max_tokens": max(abandoned, default=None),
        },
        "trained": account.trained,
        "trained_by_frame": account.trained_by_frame,
        "trained_by_digest_only": account.trained - account.trained_by_frame,
        "trained_tokens": account.trained_tokens,
        "trained_twice": account.trained_twice,
        "skipped": account.skipped,
        "dropped": dict(sorted(account.dropped.items())),
        "groups_dropped": dict(sorted(account.groups_dropped.items())),
        "measured": account.measured,
        "pending": account.pending,
        "staleness_tokens": {str(age): tokens for age, tokens in sorted(account.tokens_by_staleness.items())},
        "violations": {
            "tokens": account.violations,
            "stale": account.tokens_stale,
            "from_future": account.tokens_from_future,
            "dead_branch": account.tokens_of_dead_branch,
        },
        "mean_tokens_trained": account.mean_tokens_trained,
        "mean_tokens_sampled": account.mean_tokens_sampled,
        "length_bias": account.length_bias,
    }


# ---- text ------------------------------------------------------------------------------------------------------------


def _evidence_text(report: Report) -> str:
    # What is normal is left out: each of these texts is empty in a clean run that has ended.
    torn = f", a torn line of {report.torn_bytes} bytes at its end" if report.torn_bytes else ""
    going = "" if report.is_ended or not report.forks else "; still going, or killed: it has no end"
    pruned = f", {report.pruned_results} results whose frames were pruned" if report.pruned_results else ""
    uncommitted = f", {report.uncommitted} trajectories not committed" if report.uncommitted else ""
    gone = f", {report.pruned_checkpoints} older ones removed" if report.pruned_checkpoints else ""
    rows = [
        ("job", f"{report.job_id}, staleness bound {report.bound}"),
        ("journal", f"{report.num_lines} lines{torn}{going}"),
        ("frames", f"{report.num_frames} with {report.num_witnesses} trajectories{uncommitted}{pruned}"),
        ("checkpoints", f"{report.num_checkpoints}{gone}"),
        ("figures", _figures_text(report.figures)),
        ("signatures", _seals_text(report)),
    ]
    if report.dead_steps:
        rows.append(("dead branches", f"{len(report.dead_steps)} steps: {_short(map(str, report.dead_steps))}"))
    rows += [(f"in doubt: {each.worker_id}", _doubt_text(each)) for each in report.doubted[:SHOWN_ROWS]]
    rows += [
        (
            f"spool {spool.name}",
            f"{spool.committed} committed, {spool.uncommitted} not ({spool.uncommitted_tokens} tokens)",
        )
        for spool in report.spools
    ]
    rows += [("note", note) for note in report.notes]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {printable(value)}" for name, value in rows)


def _figures_text(figures: QuotedFigures) -> str:
    unknown = figures.evaluations - figures.accuracies
    limits = [
        (figures.steps_without_frames, "steps: frames pruned or damaged"),
        (figures.evaluations_not_recomputed, "evaluations: frames pruned or damaged"),
        (unknown, "accuracies: what was right then is not known"),
        (figures.unwritten_steps, "last steps: they have no line in metrics.jsonl"),
    ]
    gaps = "".join(f"; not of {count} {why}" for count, why in limits if count)
    done = f"reward_mean of {figures.steps} steps, mean reward of {figures.evaluations} evaluations and accuracy of"
    return f"{done} {figures.accuracies} recomputed{gaps}"


def _doubt_text(doubted: DoubtedSamples) -> str:
    steps = f"{doubted.first} to {doubted.last}" if doubted.first != doubted.last else str(doubted.first)
    trained = f"{doubted.samples} samples ({doubted.tokens} tokens) were trained on in steps {steps} before"
    return f"{trained if doubted.samples else 'none of its samples was trained on before'}: {doubted.why}"


def _seals_text(report: Report) -> str:
    seals, lines = report.seals, report.num_lines
    if not seals.num_seals:
        return "none"
    whose = "certified by the authority given" if seals.is_verified else "not verified against an authority"
    tail = f"; lines {seals.num_lines + 1} to {lines} are not signed" if seals.num_lines < lines else ""
    return f"{seals.num_seals} present, {whose}: lines 1 to {seals.num_lines} are signed{tail}"


def _accounts_text(report: Report) -> str:
    if report.surviving is None:
        return ""
    shown = report.forks[-SHOWN_FORKS:]
    accounts = [report.surviving, *(fork.account for fork in shown)]
    headings = ["SURVIVING", *(_fork_heading(fork) for fork in shown)]
    # With a single fork both columns would be the same.
    if len(report.forks) == 1:
        accounts, headings = accounts[:1], ["ALL"]
    rows = [["", *headings]]
    rows += [[name, *(cell(account) for account in accounts)] for name, cell in _rows(accounts)]
    # The names are aligned to the left, the numbers to the right.
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _fork_heading(fork: ForkReport) -> str:
    parent = f" OF {fork.parent}" if fork.parent else ""
    return f"FORK {fork.fork}{parent}"


_Row = tuple[str, Callable[[Account], str]]


def _rows(accounts: Sequence[Account]) -> list[_Row]:
    """Return the rows (name, cell of an account): those of promises, and others where any account is not zero."""

    def by_reason(name: str, field: Callable[[Account], Mapping[str, int]]) -> list[_Row]:
        reasons = sorted({reason for account in accounts for reason in field(account)})[:SHOWN_ROWS]
        return [(f"  {name}: {reason}", _at(field, reason)) for reason in reasons]

    def optional(name: str, field: Callable[[Account], int]) -> list[_Row]:
        return [(name, lambda a: _count(field(a)))] if any(field(account) for account in accounts) else []

    # The rows are the same for all columns: a reason or an age that any account has gets one.
    ages = sorted({age for account in accounts for age in account.tokens_by_staleness})[:SHOWN_ROWS]
    return [
        ("steps", lambda a: _count(a.steps)),
        *optional("  without training", lambda a: a.steps_not_trained),
        ("leases", lambda a: _count(a.leased)),
        ("  returned", lambda a: _count(a.returned)),
        *by_reason("lost", lambda a: a.lost),
        *optional("  released", lambda a: a.released),
        *optional("  outstanding", lambda a: a.outstanding),
        ("  unaccounted for", lambda a: _count(a.unaccounted)),
        ("results", lambda a: _count(a.completed)),
        *optional("  duplicate", lambda a: a.duplicates),
        *by_reason("refused", lambda a: a.refused),
        *optional("  abandoned", lambda a: len(a.abandoned_tokens)),
        *[
            ("    mean tokens", lambda a: _mean(a.abandoned_tokens))
            for _ in optional("", lambda a: len(a.abandoned_tokens))
        ],
        *optional("  replayed after a restore", lambda a: a.replayed),
        ("samples accepted", lambda a: _count(a.accepted)),
        ("  trained on", lambda a: _count(a.trained)),
        ("  trained on, verified by frame", lambda a: _count(a.trained_by_frame)),
        ("  trained on twice", lambda a: _count(a.trained_twice)),
        *optional("  skipped", lambda a: a.skipped),
        *by_reason("dropped", lambda a: a.dropped),
        *optional("  measured", lambda a: a.measured),
        *optional("  pending", lambda a: a.pending),
        ("tokens trained on", lambda a: _count(a.trained_tokens)),
        *((f"  {age} version{'' if age == 1 else 's'} old", _at(lambda a: a.tokens_by_staleness, age)) for age in ages),
        ("  older than the bound", lambda a: _count(a.tokens_stale)),
        ("  from the future", lambda a: _count(a.tokens_from_future)),
        ("  of a dead branch", lambda a: _count(a.tokens_of_dead_branch)),
        ("mean tokens, trained on", lambda a: _float(a.mean_tokens_trained)),
        ("mean tokens, sampled", lambda a: _float(a.mean_tokens_sampled)),
        ("  relative difference", lambda a: "-" if a.length_bias is None else f"{a.length_bias:+.2%}"),
    ]


def _findings_text(report: Report) -> str:
    if report.is_clean:
        return "clean: every check passed"
    total = sum(report.counts.values())
    lines = [f"NOT CLEAN: {total} finding{'s' if total > 1 else ''}"]
    for code, group in groupby(sorted(report.findings, key=lambda f: f.code), key=lambda f: f.code):
        found: list[Finding] = list(group)
        lines += [f"  {code}  {f.place}: {printable(f.message)}" for f in found[:SHOWN_PER_CODE]]
        if (more := report.counts[code] - SHOWN_PER_CODE) > 0:
            lines.append(f"  {code}  and {more} more")
    return "\n".join(lines)


def _at(field: Callable[[Account], Mapping[_K, int]], key: _K) -> Callable[[Account], str]:
    return lambda account: _count(field(account).get(key, 0))


def _short(names: Any) -> str:
    listed = list(names)
    return ", ".join(listed[:6]) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "")


def _count(value: int) -> str:
    return f"{value:,}"


def _float(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _mean(values: Sequence[int]) -> str:
    return _float(sum(values) / len(values)) if values else "-"
