"""One pass over the journal: the chain, then each record against what the lines before it and the frames say.

Lines are numbered as they lie in the file, whatever they claim. A line that cannot be read is reported and passed over;
its bytes still count for the chain. A record is judged by the history of its own fork (history.py), with the frame that
it points at as its witness. Batches, drops and evaluations are in batches.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import assert_never

from periplus.audit import batches
from periplus.audit.evidence import AUDIT_FILE, Evidence, Witness
from periplus.audit.findings import Code, Findings
from periplus.audit.history import FOREVER, Accepted, Fork, FramePlace, History, Leased, Returned
from periplus.audit.records import (
    CHAIN_BYTES,
    START_OF_BATCHES,
    START_OF_CHAIN,
    Checkpoint,
    Consume,
    Drop,
    End,
    Eval,
    FrameId,
    Lease,
    Lost,
    Open,
    Prune,
    Publish,
    Record,
    Result,
    Verdict,
    chain_hash,
    from_line,
)
from periplus.errors import CorruptFrame
from periplus.policy import Lineage, Policy
from periplus.trajectory import PolicyRun

SETTINGS = ("job_id", "bound", "group_size", "groups_per_step", "seed", "algorithm")
"""Of an `open` line; they never change, fork or not."""


class Walk:
    """The journal as it has been read so far.

    `chain`: the hash that each line's `prev` must be, end to end, and that of the next. `kept_from`: the newest prune.
    `missing`: results whose frame is not in the store: line -> frame. `newest_judged`: of each epoch of the store, but
    for what a restore replays. `torn_bytes`: of an unfinished last line.
    """

    def __init__(self, evidence: Evidence, findings: Findings) -> None:
        self._evidence = evidence
        self._findings = findings
        self.history = History()
        self.chain = bytearray(START_OF_CHAIN)
        self.num_lines = 0
        self.torn_bytes = 0
        self.kept_from: FrameId | None = evidence.pruned_before
        self.missing: dict[int, FrameId] = {}
        self.first_judged_by: dict[FramePlace, Fork] = {}
        self.newest_judged: dict[int, FramePlace] = {}
        self._offset = 0

    def read(self, lines: Iterable[bytes]) -> None:
        """All lines, to the end."""
        for raw in lines:
            if not raw.endswith(b"\n"):
                self.torn_bytes = len(raw)
                return
            self._line(raw[:-1])
            self.num_lines += 1

    def chain_at(self, n: int) -> bytes:
        """The hash of the line before line n."""
        return bytes(self.chain[n * CHAIN_BYTES : (n + 1) * CHAIN_BYTES])

    @property
    def place(self) -> str:
        return f"{AUDIT_FILE}:{self.num_lines + 1}"

    def _line(self, raw: bytes) -> None:
        at, expected = self.num_lines, self.chain_at(self.num_lines)
        self.chain += chain_hash(raw)
        try:
            line = from_line(raw, self.place)
        except CorruptFrame as error:
            self._say(Code.LINE_UNREADABLE, str(error))
            return
        if line.prev != expected:
            self._say(
                Code.CHAIN_BROKEN, "the line before is not the one that this line was written after",
                found=line.prev.hex(), expected=expected.hex(),
            )  # fmt: skip
        if line.n - at != self._offset:
            self._offset = line.n - at
            self._say(Code.NUMBER_BROKEN, f"line {at} says that it is line {line.n}", found=line.n, expected=at)
        self._record(line.record)

    def _record(self, record: Record) -> None:
        if isinstance(record, Open):
            self._open(record)
            return
        fork = self.history.forks[-1] if self.history.forks else None
        if fork is None or fork.ended:
            where = f"after the end of fork {fork.number}" if fork else "before any open"
            self._say(Code.NOT_OPENED, f"a record of kind {type(record).__name__.lower()} {where}")
            if fork is None:
                return
        at = self.num_lines
        if not isinstance(record, Lease):
            self._check_lease_numbers(fork)
        match record:
            case Lease():
                self._lease(fork, record)
            case Result():
                self._result(fork, record)
            case Lost():
                self._lost(fork, record)
            case Drop():
                batches.drop(fork, at, record, self._findings, self.place)
            case Eval():
                batches.evaluate(fork, at, record, self._findings, self.place)
            case Consume():
                batches.consume(self.history, fork, at, record, self._findings, self.place)
            case Publish():
                self._publish(fork, record)
            case Checkpoint():
                self._checkpoint(fork, record)
            case Prune():
                self._prune(fork, record)
            case End():
                fork.ended = record.how
            case _:
                assert_never(record)

    # ---- forks ----------------------------------------------------------------------------------------------------

    def _open(self, opened: Open) -> None:
        forks = self.history.forks
        for fork in forks[-1:]:
            self._settings(fork.opened, opened)
            if opened.fork <= fork.number:
                self._say(Code.FORK_NOT_NEW, f"fork {opened.fork} opens after fork {fork.number}")
        parent = self._parent(opened)
        branch_at = FOREVER if opened.resumed_at is None else opened.resumed_at
        first = Policy(opened.fork, opened.parent.version if opened.parent else 0)
        roots = {0: START_OF_BATCHES} if opened.parent is None else {}
        if parent is not None and first.version in parent.roots:
            roots = {first.version: parent.roots[first.version]}
        fork = Fork(
            opened=opened, at=self.num_lines, parent=parent, branch_at=branch_at, lineage=_lineage(opened, parent),
            head=first, roots=roots,
        )  # fmt: skip
        fork.inherit()
        forks.append(fork)

    def _parent(self, opened: Open) -> Fork | None:
        if opened.parent is None:
            return None
        parent = self.history.by_number(opened.parent.fork)
        if parent is None:
            if self.history.forks or opened.resumed_at is not None:
                self._say(Code.PARENT_UNKNOWN, f"fork {opened.fork} starts from {opened.parent}, of an unknown fork")
            return None
        known = [c for _, c in parent.checkpoints if c.policy == opened.parent]
        if known:
            fits = known[0].covers == opened.resumed_at and known[0].manifest == opened.manifest
        else:  # killed between the manifest's renaming and its line: the file itself is the witness
            kept = [c for c in self._evidence.checkpoints if c.digest == opened.manifest]
            fits = any(c.manifest and (c.manifest.policy, c.manifest.covers) == (opened.parent, opened.resumed_at)
                       for c in kept)  # fmt: skip
        if not fits:
            self._say(
                Code.PARENT_UNKNOWN,
                f"fork {opened.fork} starts from {opened.parent} at line {opened.resumed_at}, which is no checkpoint "
                f"of fork {parent.number}",
                parent=str(opened.parent),
                resumed_at=opened.resumed_at,
                manifest=opened.manifest.hex() if opened.manifest else None,
            )
        return parent

    def _settings(self, before: Open, opened: Open) -> None:
        for name in SETTINGS:
            old, new = getattr(before, name), getattr(opened, name)
            if old != new:
                self._say(
                    Code.SETTINGS_CHANGED, f"{name} was {old} in fork {before.fork} and is {new} in fork {opened.fork}",
                    name=name, before=old, after=new,
                )  # fmt: skip

    # ---- leases and results ---------------------------------------------------------------------------------------

    def _lease(self, fork: Fork, lease: Lease) -> None:
        key, sample = (lease.lease_id, lease.group, lease.sample), (lease.group, lease.sample)
        if lease.lease_id in fork.lease_ids:
            self._say(Code.LEASE_REPEATED, f"lease {lease.lease_id} was given out before", lease=lease.lease_id)
        if fork.has_ended(sample):
            self._say(Code.LEASE_AFTER_END, f"group {lease.group} had ended", group=lease.group, sample=lease.sample)
        item = fork.group_item(lease.group)
        if item not in (None, (lease.item, lease.purpose)):
            self._say(
                Code.GROUP_MIXED, f"group {lease.group} is of item {item[0]} for {item[1]}", found=lease.item,
                purpose=lease.purpose, group=lease.group,
            )  # fmt: skip
        earlier = fork.live.get(sample)
        if earlier is not None:
            earlier.superseded = True
            self._say(
                Code.UNACCOUNTED,
                f"sample {lease.sample} of group {lease.group} is leased again, and nothing says what became of lease "
                f"{earlier.lease.lease_id} of line {earlier.at + 1}",
                lease=earlier.lease.lease_id, group=lease.group, sample=lease.sample,
            )  # fmt: skip
        leased = Leased(self.num_lines, lease)
        fork.leases[key] = fork.live[sample] = leased
        fork.lease_ids.add(lease.lease_id)
        fork.newest_lease = max(fork.newest_lease, lease.lease_id)
        fork.leased_samples.add(sample)
        fork.items.setdefault(lease.group, (lease.item, lease.purpose))
        fork.group_leased_at.setdefault(lease.group, self.num_lines)

    def _check_lease_numbers(self, fork: Fork) -> None:
        """A gap is one lease that has no line. Leases granted at once may be written, and torn, in any order."""
        gap = fork.newest_lease - len(fork.lease_ids)
        if gap > fork.num_missing_leases:
            missing = [n for n in range(1, min(fork.newest_lease, 1 << 20)) if n not in fork.lease_ids]
            message = f"leases are numbered from 1 in each fork, and nothing says what {_few(missing)} was"
            self._say(Code.LEASE_MISSING, message, leases=missing[:100])
        fork.num_missing_leases = max(gap, fork.num_missing_leases)

    def _lost(self, fork: Fork, lost: Lost) -> None:
        key = (lost.lease_id, lost.group, lost.sample)
        leased = next((f.leases[key] for f in reversed(self.history.forks) if key in f.leases), None)
        if leased is None or leased.lost_at >= 0 or (leased.returned_at >= 0 and not leased.abandoned):
            what = "was never granted" if leased is None else "had ended"
            self._say(Code.LOST_CONTRADICTS, f"lease {lost.lease_id} is lost, but it {what}", lease=lost.lease_id)
            return
        leased.lost_at, leased.lost_why = self.num_lines, lost.why
        _end_live(fork, leased)

    def _result(self, fork: Fork, result: Result) -> None:
        leased = fork.find_lease((result.lease_id, result.group, result.sample))
        own = leased is not None and leased.returned_at < 0
        if leased is not None and own:
            leased.returned_at = self.num_lines
            leased.abandoned = result.verdict is Verdict.ABANDONED
            _end_live(fork, leased)
        found = self._witness(fork, result)
        if found is not None:
            self._compare(result, leased, found)
        is_replay = False
        if result.frame is not None:
            place = (result.frame, result.index)
            is_replay = self.first_judged_by.setdefault(place, fork) is not fork
            if fork.leases:  # what a restore replays, it judges before it leases anything
                epoch = result.frame.epoch
                self.newest_judged[epoch] = max(place, self.newest_judged.get(epoch, place))
        purpose = leased.lease.purpose if leased else found.purpose if found else None
        fork.results.append(Returned(self.num_lines, result, purpose, is_replay))
        self._verdict(fork, result, leased, found)

    def _verdict(self, fork: Fork, result: Result, leased: Leased | None, found: Witness | None) -> None:
        sample = (result.group, result.sample)
        names = {"lease": result.lease_id, "group": result.group, "sample": result.sample}
        ended = fork.has_ended(sample)
        if result.verdict in (Verdict.ACCEPTED, Verdict.ABANDONED) and leased is None:
            message = f"sample {result.sample} of group {result.group} was {result.verdict} but never leased"
            self._say(Code.RESULT_WITHOUT_LEASE, message, **names)
        if result.verdict is Verdict.DUPLICATE and not ended and sample not in fork.pending:
            self._say(Code.DUPLICATE_OF_NOTHING, f"no result of sample {sample} was ever accepted", **names)
        if result.verdict is not Verdict.ACCEPTED:
            return
        if sample in fork.accepted or ended:
            self._say(Code.ACCEPTED_TWICE, f"sample {result.sample} of group {result.group} was in before", **names)
            return
        unfit = (
            "abandoned" if result.stop_reason == "abandoned" else "not kept in any frame" if not result.frame else ""
        )
        future = [run.policy for run in result.policies if not self.history.reached(run.policy)]
        if future:
            unfit = f"sampled by {future[0]}, which nobody had reached"
        if unfit:
            self._say(Code.ACCEPTED_UNFIT, f"sample {result.sample} of group {result.group} is {unfit}", **names)
        accepted = Accepted(self.num_lines, result if found is None else replace(result, policies=found.policies),
                            by_frame=found is not None)  # fmt: skip
        fork.accepted[sample] = fork.pending[sample] = accepted

    def _witness(self, fork: Fork, result: Result) -> Witness | None:
        if result.frame is None:
            return None
        before = fork.judged.setdefault((result.frame, result.index), self.num_lines)
        if before != self.num_lines:
            message = f"line {before + 1} judged trajectory {result.index} of frame {result.frame} before"
            self._say(Code.FRAME_JUDGED_TWICE, message, frame=str(result.frame), index=result.index)
        frame = self._evidence.frames.get(result.frame)
        if frame is None:
            self.missing[self.num_lines] = result.frame
            return None
        if not frame:  # unreadable, which is said of the frame
            return None
        if result.index >= len(frame):
            message = f"frame {result.frame} has {len(frame)} trajectories, no index {result.index}"
            self._say(Code.FRAME_CONTRADICTS, message, frame=str(result.frame), index=result.index)
            return None
        return frame[result.index]

    def _compare(self, result: Result, leased: Leased | None, found: Witness) -> None:
        pairs = [
            ("digest", result.digest.hex(), found.digest.hex()),
            ("lease", result.lease_id, found.lease_id),
            ("group", result.group, found.group),
            ("sample", result.sample, found.sample),
            ("worker", result.worker_id, found.worker_id),
            ("tokens", result.num_tokens, found.num_tokens),
            ("policies", _runs(result.policies), _runs(found.policies)),
            ("stop", result.stop_reason, found.stop_reason),
        ]
        if leased is not None and result.verdict is Verdict.ACCEPTED:
            pairs.append(("item", leased.lease.item, found.item))
            pairs.append(("purpose", leased.lease.purpose, found.purpose))
        for name, said, kept in pairs:
            if said != kept:
                self._say(
                    Code.FRAME_CONTRADICTS,
                    f"{name} is {said} in the journal and {kept} in trajectory {result.index} of frame {result.frame}",
                    name=name, journal=said, frame=kept,
                )  # fmt: skip

    # ---- weights --------------------------------------------------------------------------------------------------

    def _publish(self, fork: Fork, published: Publish) -> None:
        policy, digest = published.policy, fork.published.setdefault(published.policy, published.digest)
        if digest != published.digest:
            message = f"{policy} was published before with another digest"
            self._say(Code.PUBLISH_CONTRADICTS, message, found=published.digest.hex(), expected=digest.hex())
        if not _has_reached(fork, policy):
            self._say(Code.PUBLISH_CONTRADICTS, f"{policy} is published, but the fork is at {fork.head}")

    def _checkpoint(self, fork: Fork, checkpoint: Checkpoint) -> None:
        covered = [b.consume.policy for b in fork.batches if b.at < checkpoint.covers]
        expected = covered[-1].next() if covered else Policy(fork.number, fork.lineage.first_version)
        if checkpoint.policy != expected or not fork.at < checkpoint.covers <= self.num_lines:
            self._say(
                Code.CHECKPOINT_CONTRADICTS,
                f"a checkpoint of {checkpoint.policy} covers the lines before {checkpoint.covers}, where the fork is "
                f"at {expected}",
                policy=str(checkpoint.policy), covers=checkpoint.covers, expected=str(expected),
            )  # fmt: skip
        fork.checkpoints.append((self.num_lines, checkpoint))

    def _prune(self, fork: Fork, prune: Prune) -> None:
        self.kept_from = max(prune.kept_from, self.kept_from) if self.kept_from else prune.kept_from
        pending = [accepted.result for accepted in fork.pending.values()]
        uncovered = [
            accepted.result
            for segment, limit in fork.segments()
            for batch in segment.batches
            if batch.at < limit and batch.consume.policy.version >= prune.policy.version
            for used in batch.consume.samples
            if (accepted := segment.accepted.get((used.group, used.sample))) is not None
        ]
        early = [r for r in (*pending, *uncovered) if r.frame is not None and r.frame < prune.kept_from]
        if early:
            self._say(
                Code.PRUNED_TOO_EARLY,
                f"frames before {prune.kept_from} hold {len(early)} samples that a restore from {prune.policy} needs, "
                f"such as {early[0].sample} of group {early[0].group}",
                group=early[0].group, sample=early[0].sample, frame=str(early[0].frame),
            )  # fmt: skip
        if all(c.policy != prune.policy for f, _ in fork.segments() for _, c in f.checkpoints):
            self._say(Code.PRUNED_TOO_EARLY, f"there is no checkpoint of {prune.policy}", policy=str(prune.policy))

    def _say(self, code: Code, message: str, **values: object) -> None:
        self._findings.add(code, self.place, message, **values)


def _lineage(opened: Open, parent: Fork | None) -> Lineage:
    try:
        if opened.parent is not None and parent is not None:
            return parent.lineage.restored(opened.fork, opened.parent)
        return Lineage(opened.fork, (opened.parent,) if opened.parent else ())
    except ValueError:  # said already: the fork is not new, or the parent is not on its lineage
        return Lineage(opened.fork)


def _end_live(fork: Fork, leased: Leased) -> None:
    sample = (leased.lease.group, leased.lease.sample)
    if fork.live.get(sample) is leased:
        del fork.live[sample]


def _has_reached(fork: Fork, policy: Policy) -> bool:
    return policy.fork == fork.number and fork.lineage.first_version <= policy.version <= fork.head.version


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:3])) + (f" and {len(numbers) - 3} more" if len(numbers) > 3 else "")


def _runs(policies: Iterable[PolicyRun]) -> list[list[int]]:
    return [[r.policy.fork, r.policy.version, r.num_tokens] for r in policies]
