"""What is still on disk, against the journal that has been read: frames, checkpoints, metrics, the gateways' spools.

A frame that a line points at may be gone only if a `prune` line let it go. A trajectory in a frame that no line points
at was being committed when its trainer stopped, if nothing behind it in the same epoch was judged (each start of a
trainer writes an epoch of its own); otherwise its line is gone.

A checkpoint's manifest is a witness of the journal: it names a line and the hash of everything before it. So nothing
before the newest manifest can be changed without changing that file, and a journal that is shorter was cut.
"""

from collections import Counter
from dataclasses import dataclass, field

from periplus.audit.evidence import AUDIT_FILE, Evidence, KeptCheckpoint, Manifest
from periplus.audit.findings import Code, Findings
from periplus.audit.history import Fork
from periplus.audit.records import Checkpoint
from periplus.audit.walk import Walk
from periplus.policy import Policy
from periplus.trajectory import Purpose


@dataclass(slots=True)
class Kept:
    """Counts of what was compared. `uncommitted`: trajectories in frames that no line points at, and may be there."""

    uncommitted: int = 0
    pruned_results: int = 0
    pruned_checkpoints: int = 0
    notes: list[str] = field(default_factory=list)


def check(walk: Walk, evidence: Evidence, findings: Findings) -> Kept:
    """Everything below, in order."""
    kept = Kept()
    for place, problem in evidence.damaged.items():
        findings.add(Code.FRAME_UNREADABLE, place, problem)
    _frames_that_lines_point_at(walk, evidence, findings, kept)
    _frames_that_no_line_points_at(walk, evidence, findings, kept)
    _settings(walk, evidence, findings)
    _checkpoints(walk, evidence, findings, kept)
    _steps(walk, evidence, findings)
    return kept


# ---- frames ----------------------------------------------------------------------------------------------------------


def _frames_that_lines_point_at(walk: Walk, evidence: Evidence, findings: Findings, kept: Kept) -> None:
    if evidence.store_damaged:
        return  # said once: nothing can be known of the frames behind the damage
    for at, frame in walk.missing.items():
        if walk.kept_from is not None and frame < walk.kept_from:
            kept.pruned_results += 1
        else:
            message = f"frame {frame} is not in the store, and was not pruned"
            findings.add(Code.FRAME_MISSING, f"{AUDIT_FILE}:{at + 1}", message, frame=str(frame))


def _frames_that_no_line_points_at(walk: Walk, evidence: Evidence, findings: Findings, kept: Kept) -> None:
    for frame, witnesses in evidence.frames.items():
        for index, seen in enumerate(witnesses):
            place = (frame, index)
            if place in walk.first_judged_by:
                continue
            where, what = f"frame {frame}[{index}]", f"sample {seen.sample} of group {seen.group}"
            future = [run.policy for run in seen.policies if not walk.history.reached(run.policy)]
            newest = walk.newest_judged.get(frame.epoch)
            if future and not evidence.num_later_lines:
                message = f"{what} was sampled by {future[0]}, which the journal never reaches: its end is missing"
                findings.add(Code.FRAME_UNJUDGED, where, message, policy=str(future[0]))
            elif newest is not None and place < newest:
                message = f"{what} has no result line, though what came later has"
                findings.add(Code.FRAME_UNJUDGED, where, message, group=seen.group, sample=seen.sample)
            else:
                kept.uncommitted += 1


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def _checkpoints(walk: Walk, evidence: Evidence, findings: Findings, kept: Kept) -> None:
    lines = {c.policy: (fork, at, c) for fork in walk.history.forks for at, c in fork.checkpoints}
    present = {k.manifest.policy for k in evidence.checkpoints if k.manifest} | {
        _named(k) for k in evidence.checkpoints
    }
    oldest = min((policy for policy in present if policy is not None), default=None)
    for policy, (_, at, _) in sorted(lines.items()):
        if policy not in present:
            if oldest is not None and policy < oldest:
                kept.pruned_checkpoints += 1
                continue
            message = f"checkpoint {policy} is not there, and is none of the oldest, which may be removed"
            findings.add(Code.MANIFEST_MISSING, f"{AUDIT_FILE}:{at + 1}", message, policy=str(policy))
    for checkpoint in evidence.checkpoints:
        place = f"checkpoints/{checkpoint.name}"
        for part, problem in checkpoint.bad_parts.items():
            findings.add(Code.PART_WRONG, f"{place}/{part}", problem)
        if checkpoint.manifest is None:
            findings.add(Code.MANIFEST_UNREADABLE, f"{place}/manifest.json", checkpoint.problem)
            continue
        found = lines.get(checkpoint.manifest.policy)
        if checkpoint.manifest.covers > walk.num_lines and evidence.num_later_lines:
            continue  # written while this audit was reading
        _CheckedManifest(walk, findings, checkpoint, checkpoint.manifest, place).check(found, kept)


def _named(checkpoint: KeptCheckpoint) -> Policy | None:
    fork, _, version = checkpoint.name.partition(".")
    return Policy(int(fork), int(version)) if fork.isdecimal() and version.isdecimal() else None


@dataclass(frozen=True, slots=True)
class _CheckedManifest:
    walk: Walk
    findings: Findings
    kept: KeptCheckpoint
    manifest: Manifest
    place: str

    def check(self, line: tuple[Fork, int, Checkpoint] | None, kept: Kept) -> None:
        manifest, walk = self.manifest, self.walk
        if self.kept.name != str(manifest.policy):
            self._contradicts("policy", str(manifest.policy), self.kept.name)
        if manifest.covers > walk.num_lines:
            message = f"it covers {manifest.covers} lines; the journal has {walk.num_lines}: its end is missing"
            self._say(Code.JOURNAL_TRUNCATED, message, covers=manifest.covers, lines=walk.num_lines)
            return
        if walk.chain_at(manifest.covers) != manifest.prev:
            self._contradicts("audit.prev", manifest.prev.hex(), walk.chain_at(manifest.covers).hex())
        fork = line[0] if line else walk.history.by_number(manifest.policy.fork)
        if line is None:
            self._unrecorded(fork, kept)
        elif line[2].manifest != self.kept.digest:
            message = f"its hash is not the one in line {line[1] + 1}"
            self._say(Code.MANIFEST_WRONG, message, found=self.kept.digest.hex(), expected=line[2].manifest.hex())
        if line is not None and line[2].covers != manifest.covers:
            self._contradicts("audit.n", manifest.covers, line[2].covers)
        if fork is not None:
            self._history(fork)
            self._groups(fork)
            self._weights(fork)

    def _unrecorded(self, fork: Fork | None, kept: Kept) -> None:
        manifest = self.manifest
        resumed = any(f.opened.manifest == self.kept.digest for f in self.walk.history.forks)
        interrupted = fork is not None and not fork.ended and fork.head == manifest.policy
        if resumed or interrupted:
            kept.notes.append(f"checkpoint {manifest.policy} was written just before its trainer died: it has no line")
        else:
            self._say(Code.MANIFEST_UNRECORDED, "no line of the journal is about this checkpoint")

    def _history(self, fork: Fork) -> None:
        manifest = self.manifest
        if manifest.job_id != fork.opened.job_id:
            self._contradicts("job_id", manifest.job_id, fork.opened.job_id)
        root = fork.roots.get(manifest.policy.version)
        if root is not None and manifest.batches_root != root:
            self._contradicts("batches_root", manifest.batches_root.hex(), root.hex())
        earlier = [c for _, c in fork.checkpoints if c.policy < manifest.policy]
        parent = earlier[-1].policy if earlier else fork.opened.parent
        if manifest.parent != parent:
            self._contradicts("parent", _text(manifest.parent), _text(parent))
        digest = earlier[-1].manifest if earlier else fork.opened.manifest
        if manifest.parent_manifest is not None and manifest.parent_manifest != digest:
            self._contradicts("parent_manifest", manifest.parent_manifest.hex(), digest.hex() if digest else None)

    def _groups(self, fork: Fork) -> None:
        manifest = self.manifest
        leased, ended = set(), set()
        for segment, limit in fork.segments():
            until = min(limit, manifest.covers)
            leased |= {g for g, at in segment.group_leased_at.items()
                       if at < until and segment.items[g][1] is Purpose.TRAIN}  # fmt: skip
            ended |= {g for g, at in segment.group_ended_at.items() if at < until}
        waiting = {group for group in leased - ended if group < manifest.next_group}
        if leased and max(leased) >= manifest.next_group:
            self._contradicts("next_group", manifest.next_group, max(leased) + 1)
        if missing := sorted(waiting - manifest.open_groups):
            self._contradicts("open_groups", f"without {missing[:5]}", "every group that is leased and has not ended")
        if over := sorted(manifest.open_groups & ended):
            self._contradicts("open_groups", f"with {over[:5]}", "no group that has ended")

    def _weights(self, fork: Fork) -> None:
        manifest = self.manifest
        published = fork.published.get(manifest.policy)
        if published is not None and published != manifest.weights:
            self._contradicts("weights", manifest.weights.hex(), published.hex())
        if self.kept.rounded is not None and self.kept.rounded != manifest.weights:
            self._contradicts("weights", manifest.weights.hex(), self.kept.rounded.hex())

    def _contradicts(self, name: str, found: object, expected: object) -> None:
        message = f"{name} is {found}; by the journal and the files it is {expected}"
        self._say(Code.MANIFEST_CONTRADICTS, message, name=name, found=found, expected=expected)

    def _say(self, code: Code, message: str, **values: object) -> None:
        self.findings.add(code, f"{self.place}/manifest.json", message, **values)


def _text(policy: Policy | None) -> str | None:
    return None if policy is None else str(policy)


# ---- other witnesses -------------------------------------------------------------------------------------------------


def _settings(walk: Walk, evidence: Evidence, findings: Findings) -> None:
    for fork in walk.history.forks[-1:]:
        for name, expected in evidence.settings.items():
            found = getattr(fork.opened, name)
            if found != expected:
                message = f"{name} is {found} in the journal and {expected} in config.yaml"
                findings.add(Code.SETTINGS_CHANGED, f"{AUDIT_FILE}:{fork.at + 1}", message, name=name,
                             before=expected, after=found)  # fmt: skip


def _steps(walk: Walk, evidence: Evidence, findings: Findings) -> None:
    if evidence.num_later_lines:
        return  # the run goes on
    for policy in evidence.steps:
        fork = walk.history.by_number(policy.fork)
        if fork is not None and policy.version > fork.head.version:
            message = f"a step made {policy}; the journal ends its fork at {fork.head}"
            findings.add(Code.METRICS_AHEAD, "metrics.jsonl", message, policy=str(policy))
        elif fork is None and walk.history.forks and policy.fork >= walk.history.forks[0].number:
            findings.add(Code.METRICS_AHEAD, "metrics.jsonl", f"a step made {policy}, of no fork in the journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolCount:
    """What a gateway's spool holds, in trajectories. `unknown`: neither committed nor leased by this journal."""

    name: str
    committed: int
    uncommitted: int
    uncommitted_tokens: int


def spools(walk: Walk, evidence: Evidence, findings: Findings) -> tuple[SpoolCount, ...]:
    """Compare every trajectory that a gateway kept with the result that the trainer's journal has for its lease."""
    if not evidence.spools:
        return ()
    digests: dict[tuple[int, int, int, str], set[bytes]] = {}
    granted: Counter[tuple[int, int, int]] = Counter()
    for fork in walk.history.forks:
        granted.update(fork.leases.keys())
        for returned in fork.results:
            r = returned.result
            digests.setdefault((r.lease_id, r.group, r.sample, r.worker_id), set()).add(r.digest)
    counts = []
    for spool in evidence.spools:
        committed = uncommitted = tokens = 0
        for place, problem in spool.damaged.items():
            findings.add(Code.FRAME_UNREADABLE, f"{spool.name} {place}", problem)
        for seen in spool.witnesses:
            key = (seen.lease_id, seen.group, seen.sample)
            known = digests.get((*key, seen.worker_id), set())
            if seen.digest in known:
                committed += 1
                continue
            uncommitted += 1
            tokens += seen.num_tokens
            if known and granted[key] == 1:  # else it may be of another fork's lease of the same number
                findings.add(
                    Code.SPOOL_CONTRADICTS, spool.name,
                    f"sample {seen.sample} of group {seen.group}, lease {seen.lease_id}: the gateway has another "
                    "content than the trainer's journal",
                    gateway=seen.digest.hex(), journal=sorted(d.hex() for d in known),
                )  # fmt: skip
        counts.append(
            SpoolCount(name=spool.name, committed=committed, uncommitted=uncommitted, uncommitted_tokens=tokens)
        )
    return tuple(counts)
