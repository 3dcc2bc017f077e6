"""Checks of the files on disk against the journal that was read: frames, checkpoints, metrics, model, gateways' spools.

A frame that a journal line points at may be missing only if a `prune` line allowed its removal. A trajectory that no
line points at was being committed when its trainer stopped, provided that nothing after it in the same epoch has a
result (each start of a trainer writes its own epoch). Otherwise its line was removed.

A checkpoint's manifest is independent evidence: it names a line of the journal and the hash of everything before it. So
nothing before the newest manifest can be changed without changing that file, and a shorter journal was cut. Fields that
a manifest repeats from the journal are recomputed in manifests.py. Contradictions are findings; what cannot be compared
and is no fault is a note.
"""

from collections import Counter
from dataclasses import dataclass, field

from periplus.audit.evidence import AUDIT_FILE, Evidence, KeptCheckpoint
from periplus.audit.findings import Code, Findings
from periplus.audit.history import Fork
from periplus.audit.manifests import CheckedManifest, GroupsAt
from periplus.audit.walk import Walk
from periplus.values.policy import Policy
from periplus.values.record import RecordKind

SHOWN = 8
"""Most forks or jobs that a note lists."""

MAX_DIGITS = 20
"""Most digits of a fork or version in the name of a checkpoint's folder; 20 digits hold every 64-bit number."""


@dataclass(slots=True)
class KeptEvidence:
    """Counts of what was compared, and the notes.

    `uncommitted` counts trajectories that no line points at because they were being committed. `pruned_results` counts
    results whose frames were removed, `pruned_checkpoints` checkpoints that were removed.
    """

    uncommitted: int = 0
    pruned_results: int = 0
    pruned_checkpoints: int = 0
    notes: list[str] = field(default_factory=list)


def check(walk: Walk, evidence: Evidence, findings: Findings) -> KeptEvidence:
    """Compare the files of a run with its journal, and report contradictions as findings."""
    kept = KeptEvidence()
    for place, problem in evidence.damaged.items():
        findings.add(Code.FRAME_UNREADABLE, place, problem)
    _frames_that_lines_point_at(walk, evidence, findings, kept)
    _frames_that_no_line_points_at(walk, evidence, findings, kept)
    _settings(walk, evidence, findings)
    _config(walk, evidence, findings, kept)
    _checkpoints(walk, evidence, findings, kept)
    _final(walk, evidence, findings, kept)
    _metrics(walk, evidence, findings, kept)
    _notes_of_forks(walk, evidence, kept)
    return kept


# ---- frames ----------------------------------------------------------------------------------------------------------


def _frames_that_lines_point_at(walk: Walk, evidence: Evidence, findings: Findings, kept: KeptEvidence) -> None:
    if evidence.store_damaged:
        return  # the damage is one finding already; frames behind it cannot be read
    for at, frame in walk.missing.items():
        if walk.kept_from is not None and frame < walk.kept_from:
            kept.pruned_results += 1
        else:
            message = f"frame {frame} is not in the store, and was not pruned"
            findings.add(Code.FRAME_MISSING, f"{AUDIT_FILE}:{at + 1}", message, frame=str(frame))


def _frames_that_no_line_points_at(walk: Walk, evidence: Evidence, findings: Findings, kept: KeptEvidence) -> None:
    for frame, witnesses in evidence.frames.items():
        for index, seen in enumerate(witnesses):
            place = (frame, index)
            if place in walk.first_verdict_by:
                continue
            where, what = f"frame {frame}[{index}]", f"sample {seen.sample} of group {seen.group}"
            # Workers sample only with published policies: one that the journal never reaches shows that its end was cut
            # off.
            future = next((run.policy for run in seen.policies if not walk.history.reached(run.policy)), None)
            # Results are written in the order of the frames, so that only those behind the epoch's last result may lack
            # one.
            newest = walk.newest_verdict.get(frame.epoch)
            if future and not evidence.num_later_lines:
                message = f"{what} was sampled by {future}, which the journal never reaches: its end is missing"
                findings.add(Code.FRAME_UNJUDGED, where, message, policy=str(future))
            elif newest is not None and place < newest:
                message = f"{what} has no result line, and a later trajectory of the same epoch has one"
                findings.add(Code.FRAME_UNJUDGED, where, message, group=seen.group, sample=seen.sample)
            else:
                kept.uncommitted += 1


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def _checkpoints(walk: Walk, evidence: Evidence, findings: Findings, kept: KeptEvidence) -> None:
    # A checkpoint has two witnesses: its directory, and its line in the journal. Each is looked up in the other.
    lines = {entry.policy: (fork, at, entry) for fork in walk.history.forks for at, entry in fork.checkpoints}
    named = {_named(folder) for folder in evidence.checkpoints}
    present = named | {folder.manifest.policy for folder in evidence.checkpoints if folder.manifest}
    # Trainers remove the oldest checkpoints first; one that is missing among newer ones was taken away.
    oldest = min((policy for policy in present if policy is not None), default=None)
    for policy, (_, at, _) in sorted(lines.items()):
        if policy not in present:
            if oldest is not None and policy < oldest:
                kept.pruned_checkpoints += 1
                continue
            message = f"checkpoint {policy} does not exist, and is not among the oldest, which may be removed"
            findings.add(Code.MANIFEST_MISSING, f"{AUDIT_FILE}:{at + 1}", message, policy=str(policy))
    groups = GroupsAt()
    # In the order of the lines that they cover, because `groups` only moves forward over the journal.
    for checkpoint in sorted(evidence.checkpoints, key=_covers):
        place = f"checkpoints/{checkpoint.name}"
        for part, problem in checkpoint.bad_parts.items():
            findings.add(Code.PART_WRONG, f"{place}/{part}", problem)
        if checkpoint.manifest is None:
            findings.add(Code.MANIFEST_UNREADABLE, f"{place}/manifest.json", checkpoint.problem)
            continue
        found = lines.get(checkpoint.manifest.policy)
        if checkpoint.manifest.covers > walk.num_lines and evidence.num_later_lines:
            continue  # the checkpoint was written after this audit had begun to read
        note = CheckedManifest(walk, findings, groups, checkpoint, checkpoint.manifest, place).check(found)
        if note:
            kept.notes.append(note)


def _named(checkpoint: KeptCheckpoint) -> Policy | None:
    fork, _, version = checkpoint.name.partition(".")
    is_policy = all(part.isascii() and part.isdecimal() and len(part) <= MAX_DIGITS for part in (fork, version))
    return Policy(int(fork), int(version)) if is_policy else None


def _covers(checkpoint: KeptCheckpoint) -> int:
    return checkpoint.manifest.covers if checkpoint.manifest else 0


# ---- other witnesses -------------------------------------------------------------------------------------------------


def _settings(walk: Walk, evidence: Evidence, findings: Findings) -> None:
    # config.yaml is written at each start, so that it belongs to the newest fork alone.
    for fork in walk.history.forks[-1:]:
        for name, expected in evidence.settings.items():
            found = getattr(fork.opened, name)
            if found != expected:
                message = f"{name} is {found} in the journal and {expected} in config.yaml"
                findings.add(
                    Code.SETTINGS_CHANGED,
                    f"{AUDIT_FILE}:{fork.at + 1}",
                    message,
                    name=name,
                    before=expected,
                    after=found,
                )


def _config(walk: Walk, evidence: Evidence, findings: Findings, kept: KeptEvidence) -> None:
    """Compare config.yaml with the hash of it in the newest fork's `open` line."""
    fork = walk.history.forks[-1] if walk.history.forks else None
    if fork is None or evidence.config == fork.opened.settings:
        return
    if evidence.config is None:
        kept.notes.append("config.yaml does not exist: settings that the journal does not repeat are not known")
    # A trainer that died before its first line has already written its own config.yaml.
    elif evidence.newest_started > fork.number:
        kept.notes.append(f"config.yaml is of fork {evidence.newest_started}, which has no lines: it is not verified")
    else:
        message = f"config.yaml is not the one that fork {fork.number} began with"
        findings.add(
            Code.SETTINGS_CHANGED,
            "config.yaml",
            message,
            before=fork.opened.settings.hex(),
            after=evidence.config.hex(),
        )


def _final(walk: Walk, evidence: Evidence, findings: Findings, kept: KeptEvidence) -> None:
    """Check that the model in final/ is the last published version of the newest fork that succeeded."""
    done = next((fork for fork in reversed(walk.history.forks) if fork.ended == "succeeded"), None)
    # A model with adapters is exported with them merged, so that its digest is another one, which a line names.
    expected = (done.exported or done.published.get(done.head)) if done else None
    # The run goes on: the model may be newer than the lines that are audited.
    if evidence.num_later_lines:
        return
    if evidence.final_problem:
        findings.add(Code.FINAL_WRONG, "final", evidence.final_problem)
    elif evidence.final is None:
        if done is not None:
            kept.notes.append("final/ holds no model to compare with the last publication")
    elif done is None:
        findings.add(Code.FINAL_WRONG, "final", "a model was exported, and no fork ended with success")
    elif evidence.final != expected:
        message = f"the exported model is not {done.head}, which fork {done.number} published last"
        findings.add(
            Code.FINAL_WRONG,
            "final",
            message,
            found=evidence.final.hex(),
            expected=expected.hex() if expected else None,
        )
    else:
        _final_files(done, evidence, findings, kept)


def _final_files(done: Fork, evidence: Evidence, findings: Findings, kept: KeptEvidence) -> None:
    """Compare configuration and tokenizer in final/ with those of the newest checkpoint that is kept."""
    usable = [(c.manifest.policy, c) for c in evidence.checkpoints if c.manifest and c.manifest.policy <= done.head]
    if not usable:
        kept.notes.append("the configuration and tokenizer in final/ are not compared: no checkpoint is kept")
        return
    policy, checkpoint = max(usable, key=lambda each: each[0])
    for name in sorted(checkpoint.files.keys() | evidence.final_files.keys()):
        found, expected = evidence.final_files.get(name), checkpoint.files.get(name)
        # The part itself is a finding if it is not what the manifest lists.
        if found == expected or name in checkpoint.bad_parts:
            continue
        what = f"is not that of checkpoint {policy}"
        if found is None:
            what = "is missing"
        elif expected is None:
            what = f"is foreign: checkpoint {policy} has none of this name"
        findings.add(Code.FINAL_WRONG, f"final/{name}", f"this file {what}", name=name)


def _metrics(walk: Walk, evidence: Evidence, findings: Findings, kept: KeptEvidence) -> None:
    if evidence.metrics_problem:
        kept.notes.append(f"metrics.jsonl is not compared with the journal: {evidence.metrics_problem}")
    if evidence.num_later_lines:
        return  # the run goes on
    records = evidence.records or ()
    for policy in (record.policy for record in records if record.kind is RecordKind.STEP):
        fork = walk.history.by_number(policy.fork)
        if fork is not None and not fork.lineage.first_version < policy.version <= fork.head.version:
            message = f"a step made {policy}; the steps of its fork in the journal end at {fork.head}"
            findings.add(Code.METRICS_AHEAD, "metrics.jsonl", message, policy=str(policy))
        # Forks before the journal's first one wrote their lines in another file.
        elif fork is None and walk.history.forks and policy.fork >= walk.history.forks[0].number:
            findings.add(Code.METRICS_AHEAD, "metrics.jsonl", f"a step made {policy}, of no fork in the journal")
    evaluated = {record.policy for fork in walk.history.forks for _, record in fork.evals}
    for policy in (record.policy for record in records if record.kind is not RecordKind.STEP):
        fork = walk.history.by_number(policy.fork)
        if fork is not None and policy not in evaluated:
            message = f"{policy} was evaluated, and the journal has no evaluation of it"
            findings.add(Code.METRICS_AHEAD, "metrics.jsonl", message, policy=str(policy))


def _notes_of_forks(walk: Walk, evidence: Evidence, kept: KeptEvidence) -> None:
    for fork in walk.history.forks:
        if fork.opened.other_problems:
            what = "other problems than the fork before it, as its resumption allowed"
            kept.notes.append(f"fork {fork.number} has {what}: held-out problems may have been trained on")
    newest = walk.history.forks[-1] if walk.history.forks else None
    if evidence.authorities and newest is not None and newest.at >= walk.seals.num_sealed:
        kept.notes.append(f"fork {newest.number} is after the last signature: nobody signed that it began")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolCount:
    """Counts of the trajectories in a gateway's spool. The committed ones have a result in the journal."""

    name: str
    committed: int
    uncommitted: int
    uncommitted_tokens: int


def spools(walk: Walk, evidence: Evidence, findings: Findings, kept: KeptEvidence) -> tuple[SpoolCount, ...]:
    """Compare each trajectory in a gateway's spool with the journal's result for its lease, and count them.

    A gateway has a spool for each job. Trajectories of other jobs, whose workers have other ids, are there only if
    somebody gave or filled the wrong folder: they are neither compared nor counted, and a note names their jobs.
    """
    if not evidence.spools:
        return ()
    # A trajectory is found by its lease and worker. A lease may have several results, and numbers repeat in each fork.
    digests: dict[tuple[int, int, int, str], set[bytes]] = {}
    granted: Counter[tuple[int, int, int]] = Counter()
    for fork in walk.history.forks:
        granted.update(fork.leases.keys())
        for returned in fork.results:
            result = returned.result
            key_of_worker = (result.lease_id, result.group, result.sample, result.worker_id)
            digests.setdefault(key_of_worker, set()).add(result.digest)
    jobs = {fork.opened.job_id for fork in walk.history.forks}
    counts = []
    for spool in evidence.spools:
        committed = uncommitted = tokens = 0
        strangers: Counter[str] = Counter()
        for place, problem in spool.damaged.items():
            findings.add(Code.FRAME_UNREADABLE, f"{spool.name} {place}", problem)
        for seen in spool.witnesses:
            job_id, slash, _ = seen.worker_id.partition("/")
            if slash and job_id not in jobs:
                strangers[job_id] += 1
                continue
            key = (seen.lease_id, seen.group, seen.sample)
            known = digests.get((*key, seen.worker_id), set())
            # Committed means that the trainer got it: whatever its verdict was, a line tells of it.
            if seen.digest in known:
                committed += 1
                continue
            uncommitted += 1
            tokens += seen.num_tokens
            if known and granted[key] == 1:  # otherwise it may belong to a lease of another fork with the same number
                findings.add(
                    Code.SPOOL_CONTRADICTS,
                    spool.name,
                    f"sample {seen.sample} of group {seen.group}, lease {seen.lease_id}: its content in the gateway's "
                    "spool is not that in the journal",
                    gateway=seen.digest.hex(),
                    journal=sorted(d.hex() for d in known),
                )
        if strangers:
            named = ", ".join(sorted(strangers)[:SHOWN]) + (" ..." if len(strangers) > SHOWN else "")
            what = f"{strangers.total()} trajectories of other jobs ({named})"
            kept.notes.append(f"spool {spool.name} has {what}, which are not compared")
        counts.append(
            SpoolCount(name=spool.name, committed=committed, uncommitted=uncommitted, uncommitted_tokens=tokens)
        )
    return tuple(counts)
