"""Check of a checkpoint's manifest against the journal: every field that repeats something of the run is recomputed.

`CheckedManifest` compares one manifest: its own hash, the line and chain hash that it names, its policy and ancestors,
the root over all batches, the open groups, sums over the steps, and the digest of the weights. `GroupsAt` recomputes
groups and sums as they were before a given line. Manifests are checked in the order of the lines that they cover, so
each fork's events are swept once.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from periplus.audit.evidence import AuditedManifest, KeptCheckpoint
from periplus.audit.findings import Code, Findings
from periplus.audit.history import ConsumedBatch, Fork
from periplus.audit.records import CheckpointEntry
from periplus.audit.walk import Walk
from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose

SHOWN = 5
"""Most groups or policies that a finding lists."""


@dataclass(frozen=True, slots=True)
class CheckedManifest:
    """Check of one manifest, with all that it is compared with. `groups` is shared by the manifests of an audit."""

    walk: Walk
    findings: Findings
    groups: "GroupsAt"
    kept: KeptCheckpoint
    manifest: AuditedManifest
    place: str

    def check(self, line: tuple[Fork, int, CheckpointEntry] | None) -> str:
        """Compare the manifest with the journal, and report contradictions as findings.

        `line` is the journal's (fork, line number, entry) of this checkpoint, or None. Returns a note about something
        that is no fault, or an empty text.
        """
        manifest, walk = self.manifest, self.walk
        if self.kept.name != str(manifest.policy):
            self._contradicts("policy", str(manifest.policy), self.kept.name)
        # Nothing below can be compared with lines that are missing.
        if manifest.covers > walk.num_lines:
            message = f"it covers {manifest.covers} lines; the journal has {walk.num_lines}: its end is missing"
            self._say(Code.JOURNAL_TRUNCATED, message, covers=manifest.covers, lines=walk.num_lines)
            return ""
        # The chain hash at that line fixes every line before it.
        if walk.chain_at(manifest.covers) != manifest.prev:
            self._contradicts("audit.prev", manifest.prev.hex(), walk.chain_at(manifest.covers).hex())
        # Without a line, the fork's number tells to which history the manifest belongs.
        fork = line[0] if line else walk.history.by_number(manifest.policy.fork)
        note = self._unrecorded(fork) if line is None else ""
        if line is not None and line[2].manifest != self.kept.digest:
            message = f"its hash is not the one in line {line[1] + 1}"
            self._say(Code.MANIFEST_WRONG, message, found=self.kept.digest.hex(), expected=line[2].manifest.hex())
        if line is not None and line[2].covers != manifest.covers:
            self._contradicts("audit.n", manifest.covers, line[2].covers)
        if fork is not None:
            self._history(fork)
            self._groups(fork)
            self._progress(fork)
            self._weights(fork)
        return note

    def _unrecorded(self, fork: Fork | None) -> str:
        manifest = self.manifest
        # The line comes after the manifest. It may be missing only if the trainer died between the two.
        resumed = any(f.opened.manifest == self.kept.digest for f in self.walk.history.forks)
        interrupted = fork is not None and not fork.ended and fork.head == manifest.policy
        if resumed or interrupted:
            what = f"checkpoint {manifest.policy} was written just before its trainer died"
            return f"{what}: it has no line, and no signature"
        self._say(Code.MANIFEST_UNRECORDED, "no line of the journal names this checkpoint")
        return ""

    def _history(self, fork: Fork) -> None:
        manifest = self.manifest
        if manifest.job_id != fork.opened.job_id:
            self._contradicts("job_id", manifest.job_id, fork.opened.job_id)
        # A fork whose ancestors' lines are in another file has no root to compare with.
        root = fork.roots.get(manifest.policy.version)
        if root is not None and manifest.batches_root != root:
            self._contradicts("batches_root", manifest.batches_root.hex(), root.hex())
        parents = fork.lineage.parents
        if _is_complete(fork) and manifest.parents != parents:
            self._contradicts("parents", [str(p) for p in manifest.parents[:SHOWN]], [str(p) for p in parents[:SHOWN]])
        # The parent is the checkpoint before this one, in this fork or else the one that it was restored from.
        index = bisect_left(fork.checkpoints, manifest.policy, key=lambda line: line[1].policy)
        earlier = fork.checkpoints[index - 1][1] if index else None
        parent = earlier.policy if earlier else fork.opened.parent
        if manifest.parent != parent:
            self._contradicts("parent", _text(manifest.parent), _text(parent))
        digest = earlier.manifest if earlier else fork.opened.manifest
        if manifest.parent_manifest is not None and manifest.parent_manifest != digest:
            self._contradicts("parent_manifest", manifest.parent_manifest.hex(), digest.hex() if digest else None)

    def _groups(self, fork: Fork) -> None:
        manifest = self.manifest
        sweep = self.groups.at(fork, manifest.covers)
        # Without the ancestors' lines the journal gives only a lower bound.
        next_group = sweep.next_group
        if manifest.next_group != next_group and (_is_complete(fork) or manifest.next_group < next_group):
            self._contradicts("next_group", manifest.next_group, next_group)
        # One more group than the manifest lists is enough to find one that it lacks, and bounds the work by its length.
        missing = [
            group
            for group in _first_of(sweep.waiting, len(manifest.open_groups) + 1)
            if group not in manifest.open_groups and group < manifest.next_group
        ]
        if missing:
            without = f"without {missing[:SHOWN]}"
            self._contradicts("open_groups", without, "every group that is leased and has not ended")
        if over := sorted(group for group in manifest.open_groups if group in sweep.ended):
            self._contradicts("open_groups", f"with {over[:SHOWN]}", "no group that has ended")

    def _progress(self, fork: Fork) -> None:
        """Compare the sums that can be recomputed. A sum that the manifest of an older build lacks is no fault."""
        if not _is_complete(fork):
            return
        for name, value in self.groups.at(fork, self.manifest.covers).progress.items():
            found = self.manifest.progress.get(name, value)
            if found != value:
                self._contradicts(f"progress.{name}", f"{found!r:.40}", value)

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


def _is_complete(fork: Fork) -> bool:
    """Return whether the journal holds the whole history of the fork."""
    return all(segment.opened.parent is None or segment.parent is not None for segment, _ in fork.segments())


def _first_of(groups: Mapping[int, None], count: int) -> list[int]:
    return [group for group, _ in zip(groups, range(count), strict=False)]


class GroupsAt:
    """Groups and sums of each fork's history as they were before a line.

    The lines that are asked for one fork must rise.
    """

    def __init__(self) -> None:
        self._of: dict[Fork, _Sweep] = {}

    def at(self, fork: Fork, line: int) -> "_Sweep":
        """Return the sweep of this fork, advanced to just before this line."""
        sweep = self._of.get(fork)
        if sweep is None:
            sweep = self._of[fork] = _Sweep(fork)
        sweep.advance(line)
        return sweep


class _Sweep:
    """Sweep over the events of one fork's history.

    `next_group` is one above the largest number of a training group. `waiting` holds the training groups that were
    leased and have not ended. `progress` has sums over the steps, by the manifest's names.
    """

    def __init__(self, fork: Fork) -> None:
        self.next_group = 0
        self.waiting: dict[int, None] = {}
        self.ended: set[int] = set()
        self.progress = {"steps": 0, "completion_tokens": 0, "staleness_max": 0, "staleness_violations": 0}
        self._done = 0
        self._events = sorted(_events(fork), key=lambda event: event[0])

    def advance(self, line: int) -> None:
        """Process all events before the line."""
        while self._done < len(self._events) and self._events[self._done][0] < line:
            _, kind, value = self._events[self._done]
            self._done += 1
            if isinstance(value, ConsumedBatch):
                self._trained(value)
            elif kind is _Kind.ENDED:
                self.ended.add(value)
                self.waiting.pop(value, None)
            else:
                self.next_group = max(self.next_group, value + 1)
                # A lease of a group that has ended is a finding of its own; the group does not wait again.
                if kind is _Kind.LEASED and value not in self.ended:
                    self.waiting[value] = None

    def _trained(self, batch: ConsumedBatch) -> None:
        self.progress["steps"] += 1
        self.progress["completion_tokens"] += sum(batch.num_tokens)
        self.progress["staleness_max"] = max(self.progress["staleness_max"], *batch.ages, 0)
        self.progress["staleness_violations"] += batch.stale + batch.from_future + batch.dead_branch


class _Kind(Enum):
    LEASED = auto()
    ACCEPTED = auto()
    ENDED = auto()
    TRAINED = auto()


def _events(fork: Fork) -> Iterator[tuple[int, _Kind, int | ConsumedBatch]]:
    # Only the lines that this fork's history sees; evaluations are no part of a checkpoint.
    for segment, limit in fork.segments():
        for group, at in segment.group_leased_at.items():
            if at < limit and segment.items[group][1] is Purpose.TRAIN:
                yield at, _Kind.LEASED, group
        for (group, _), accepted in segment.accepted.items():
            if accepted.at < limit and not segment.is_eval(group):
                yield accepted.at, _Kind.ACCEPTED, group
        for group, at in segment.group_ended_at.items():
            if at < limit:
                yield at, _Kind.ENDED, group
        for batch in segment.batches:
            if batch.at < limit:
                yield batch.at, _Kind.TRAINED, batch
