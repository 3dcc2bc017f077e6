"""One pass over the audit journal: it checks the hash chain, and each entry against the lines before it and the frames.

`Walk` reads lines in order and keeps what they add up to in a `History` (history.py). Each entry is checked against the
history of its own fork. A result is also compared with the *witness*: the trajectory in the kept frame that it points
at, reduced to what a line says of it. Batches, drops and evaluations are checked in batches.py, seals in seals.py.

Lines are numbered by their place in the file, whatever number they claim. A line that cannot be read is a finding and
is skipped; its bytes still count for the chain. Nothing here raises for a bad journal: each contradiction is a finding.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from periplus.audit import batches
from periplus.audit.evidence import AUDIT_FILE, Evidence, Witness
from periplus.audit.findings import Code, Findings
from periplus.audit.history import FOREVER, Accepted, Fork, FramePlace, History, Leased, Returned
from periplus.audit.records import (
    CHAIN_BYTES,
    MAX_LINE_BYTES,
    START_OF_BATCHES,
    START_OF_CHAIN,
    AdmissionVerdict,
    CheckpointEntry,
    ConsumeEntry,
    DoubtEntry,
    DropEntry,
    EndEntry,
    Entry,
    EvalBeginEntry,
    EvalEntry,
    ExportEntry,
    FrameId,
    LeaseEntry,
    LostEntry,
    OpenEntry,
    PruneEntry,
    PublishEntry,
    ResultEntry,
    SealEntry,
    chain_hash,
    from_line,
    kind_of,
)
from periplus.audit.seals import SealCheck
from periplus.errors import CorruptFrame
from periplus.values.policy import Lineage, Policy
from periplus.values.trajectory import PolicyRun, Purpose

MAX_FORKS = 1000
"""Most forks of a journal that are checked, because a look-up visits all ancestors of a fork. A run that dies every
hour has this many after six weeks. Each fork beyond is a finding, and its entries are not checked. Chosen by hand."""

SHOWN_RUNS = 8
"""Most runs of tokens from one policy that a finding lists."""

SETTINGS = ("job_id", "bound", "group_size", "groups_per_step", "seed", "algorithm")
"""Fields of an `open` line that must be the same in every fork of a run."""


class Walk:
    """Checker of the journal's lines, and what they add up to so far.

    `chain` holds the expected `prev` of each line and of the next one, concatenated. `kept_from` is the first frame
    that the newest prune kept. `missing` maps the line of a result to its frame, if that is not in the store.
    `first_verdict_by` maps a place in a frame to the first fork that has a result for it. `newest_verdict` is the last
    such place in each epoch of the store, without those that a restore replayed. `torn_bytes` counts an unfinished last
    line.
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
        self.first_verdict_by: dict[FramePlace, Fork] = {}
        self.newest_verdict: dict[int, FramePlace] = {}
        self.seals = SealCheck(evidence.authorities, findings)
        self._offset = 0

    def read(self, lines: Iterable[bytes]) -> None:
        """Check all lines. A line that is too long or lacks its newline ends the journal."""
        for raw in lines:
            if len(raw) > MAX_LINE_BYTES:
                message = f"the line has more than the {MAX_LINE_BYTES} bytes of the longest that a trainer writes"
                self._say(Code.LINE_UNREADABLE, f"{message}; neither it nor what follows is read")
                break
            if not raw.endswith(b"\n"):
                self.torn_bytes = len(raw)
                break
            self._line(raw[:-1])
            self.num_lines += 1
        # Either a trainer died in the last line, or it runs and wrote more since: a last seal may be missing.
        is_torn = self.torn_bytes > 0 or self._evidence.num_later_lines > 0
        self.seals.end(f"{AUDIT_FILE}:{self.num_lines}", is_torn=is_torn)

    def chain_at(self, n: int) -> bytes:
        """Return the hash of the line before line `n`."""
        return bytes(self.chain[n * CHAIN_BYTES : (n + 1) * CHAIN_BYTES])

    @property
    def place(self) -> str:
        return f"{AUDIT_FILE}:{self.num_lines + 1}"

    def _line(self, raw: bytes) -> None:
        at, expected = self.num_lines, self.chain_at(self.num_lines)
        # The hash is of the bytes as they are, so that an unreadable line does not break the chain behind it.
        self.chain += chain_hash(raw)
        try:
            line = from_line(raw, self.place)
        except CorruptFrame as error:
            self._say(Code.LINE_UNREADABLE, str(error))
            return
        if line.prev != expected:
            self._say(
                Code.CHAIN_BROKEN,
                "`prev` is not the hash of the line before: that line was changed, or lines are missing",
                found=line.prev.hex(),
                expected=expected.hex(),
            )
        # Missing lines shift all later numbers by as much; the shift is reported once.
        if line.n - at != self._offset:
            self._offset = line.n - at
            self._say(Code.NUMBER_BROKEN, f"line {at} says that it is line {line.n}", found=line.n, expected=at)
        self._record(line.record, expected)

    def _record(self, record: Entry, before: bytes) -> None:
        self.seals.before(record, self.place)
        if isinstance(record, OpenEntry):
            self._open(record)
            return
        # A trainer writes its `open` line first, so that each line belongs to the fork opened last.
        fork = self.history.forks[-1] if self.history.forks else None
        if fork is None or (fork.ended and not isinstance(record, SealEntry)):
            where = f"after the end of fork {fork.number}" if fork else "before any open"
            self._say(Code.NOT_OPENED, f"a record of kind {kind_of(record)} {where}")
            if fork is None:
                return
        at = self.num_lines
        self.seals.line(fork, at, record, self.place)
        # Leases may be written out of order, but only among leases.
        if not isinstance(record, LeaseEntry):
            self._check_lease_numbers(fork)
        match record:
            case LeaseEntry():
                self._lease(fork, record)
            case ResultEntry():
                self._result(fork, record)
            case LostEntry():
                self._lost(fork, record)
            case DropEntry():
                batches.drop(fork, at, record, self._findings, self.place)
            case DoubtEntry():
                self._doubt(fork, record)
            case EvalBeginEntry():
                batches.begin_evaluation(fork, record, self._findings, self.place)
            case EvalEntry():
                batches.evaluate(fork, at, record, self._findings, self.place)
            case ConsumeEntry():
                batches.consume(self.history, fork, at, record, self._findings, self.place)
            case PublishEntry():
                self._publish(fork, record)
            case CheckpointEntry():
                self._checkpoint(fork, record)
            case PruneEntry():
                self._prune(fork, record)
            case ExportEntry():
                self._export(fork, record)
            case EndEntry():
                self._end(fork, record)
            case SealEntry():
                self.seals.seal(fork, at, before, record, self.place)
            case _:
                assert_never(record)

    # ---- forks ----------------------------------------------------------------------------------------------------

    def _open(self, opened: OpenEntry) -> None:
        forks = self.history.forks
        if len(forks) >= MAX_FORKS:
            self._say(Code.TOO_MANY_FORKS, f"fork {opened.fork} is one more than the {MAX_FORKS} that are checked")
            return
        # Compare with the fork before it in the file, which need not be its parent.
        for fork in forks[-1:]:
            self._settings(fork.opened, opened)
            if opened.fork <= fork.number:
                self._say(Code.FORK_NOT_NEW, f"fork {opened.fork} opens after fork {fork.number}")
        parent = self._parent(opened)
        self._problems(parent, opened)
        # An `open` line that names no line to branch from sees its parent whole, if there is one.
        branch_at = FOREVER if opened.resumed_at is None else opened.resumed_at
        first = Policy(opened.fork, opened.parent.version if opened.parent else 0)
        # The root over all batches is known from the run's beginning, or from a parent in this file; otherwise not at
        # all.
        roots = {0: START_OF_BATCHES} if opened.parent is None else {}
        if parent is not None and first.version in parent.roots:
            roots = {first.version: parent.roots[first.version]}
        fork = Fork(
            opened=opened,
            at=self.num_lines,
            parent=parent,
            branch_at=branch_at,
            lineage=_lineage(opened, parent),
            head=first,
            roots=roots,
            next_published=first.version,
        )
        fork.inherit()
        self.history.add(fork)

    def _parent(self, opened: OpenEntry) -> Fork | None:
        if opened.parent is None:
            return None
        parent = self.history.by_number(opened.parent.fork)
        if parent is None:
            # Only the first fork of a file may have a parent elsewhere, and then no line of this file to branch from.
            if self.history.forks or opened.resumed_at is not None:
                self._say(Code.PARENT_UNKNOWN, f"fork {opened.fork} starts from {opened.parent}, of an unknown fork")
            return None
        known = parent.checkpointed.get(opened.parent)
        if known is not None:
            fits = known.covers == opened.resumed_at and known.manifest == opened.manifest
        else:  # the trainer died after renaming the manifest and before writing its line: the file is the evidence
            kept = [c for c in self._evidence.checkpoints if c.digest == opened.manifest]
            fits = any(
                c.manifest and (c.manifest.policy, c.manifest.covers) == (opened.parent, opened.resumed_at)
                for c in kept
            )
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

    def _settings(self, before: OpenEntry, opened: OpenEntry) -> None:
        for name in SETTINGS:
            old, new = getattr(before, name), getattr(opened, name)
            if old != new:
                self._say(
                    Code.SETTINGS_CHANGED,
                    f"{name} was {old} in fork {before.fork} and is {new} in fork {opened.fork}",
                    name=name,
                    before=old,
                    after=new,
                )

    def _problems(self, parent: Fork | None, opened: OpenEntry) -> None:
        if parent is None or opened.other_problems or parent.opened.problems == opened.problems:
            return
        self._say(
            Code.SETTINGS_CHANGED,
            f"fork {opened.fork} has other problems than fork {parent.number}, and its resumption did not allow that: "
            "held-out problems may have been trained on",
            name="problems",
            before=parent.opened.problems.hex(),
            after=opened.problems.hex(),
        )

    # ---- leases and results ---------------------------------------------------------------------------------------

    def _lease(self, fork: Fork, lease: LeaseEntry) -> None:
        key, sample = (lease.lease_id, lease.group, lease.sample), (lease.group, lease.sample)
        if lease.lease_id in fork.lease_ids:
            self._say(Code.LEASE_REPEATED, f"lease {lease.lease_id} was granted before", lease=lease.lease_id)
        # None of these stops the walk: the lease is recorded in any case, so that its result finds it.
        if fork.has_ended(sample):
            self._say(Code.LEASE_AFTER_END, f"group {lease.group} ended before", group=lease.group, sample=lease.sample)
        item = fork.group_item(lease.group)
        if item not in (None, (lease.item, lease.purpose)):
            self._say(
                Code.GROUP_MIXED,
                f"group {lease.group} is of item {item[0]} for {item[1]}",
                found=lease.item,
                purpose=lease.purpose,
                group=lease.group,
            )
        self._check_lease(fork, lease)
        # A sample has one live lease. A second one must be explained by a result or a loss of the first, or name it.
        earlier = fork.live.get(sample)
        is_hedge = earlier is not None and earlier.lease.lease_id == lease.hedges and sample not in fork.hedges
        if earlier is not None and not is_hedge:
            earlier.superseded = True
            self._say(
                Code.UNACCOUNTED,
                f"sample {lease.sample} of group {lease.group} is leased again, and nothing says what became of lease "
                f"{earlier.lease.lease_id} of line {earlier.at + 1}",
                lease=earlier.lease.lease_id,
                group=lease.group,
                sample=lease.sample,
            )
        leased = Leased(self.num_lines, lease)
        fork.leases[key] = leased
        (fork.hedges if is_hedge else fork.live)[sample] = leased
        fork.lease_ids.add(lease.lease_id)
        fork.newest_lease = max(fork.newest_lease, lease.lease_id)
        fork.leased_samples.add(sample)
        # The first lease of a group decides on its problem and purpose.
        fork.items.setdefault(lease.group, (lease.item, lease.purpose))
        if lease.purpose is Purpose.EVAL and sample not in fork.measured_at:
            fork.open_evals.add(lease.group)
        fork.group_leased_at.setdefault(lease.group, self.num_lines)

    def _check_lease(self, fork: Fork, lease: LeaseEntry) -> None:
        """Check the versions, the sample number and the region of a lease against its fork.

        A lease starts at its group's version, or at the first version of the fork if that is later. It must be consumed
        at most `bound` versions after its group's.
        """
        opened, start, first, head = fork.opened, lease.start_at, fork.lineage.first_version, fork.head.version
        problem = ""
        # consume_by_version - bound is the group's version.
        if start.fork != fork.number or start.version != max(lease.consume_by_version - opened.bound, first):
            problem = f"it starts at {start} and must be consumed by version {lease.consume_by_version}"
        elif start.version > head + 1 or lease.consume_by_version < head:
            problem = f"it is for versions {start.version} to {lease.consume_by_version}"
        elif lease.purpose is Purpose.EVAL and start.version != head:
            problem = f"it is for an evaluation of {start}"
        elif lease.sample >= (opened.group_size if lease.purpose is Purpose.TRAIN else 1):
            problem = f"it is for sample {lease.sample}, in groups of {opened.group_size}"
        elif lease.region != fork.regions.setdefault(lease.worker_id, lease.region):
            problem = f"worker {lease.worker_id} is in {lease.region!r}, and was in {fork.regions[lease.worker_id]!r}"
        elif lease.hedges and not _hedges_another(fork, lease):
            problem = f"it is a second lease beside lease {lease.hedges}, which another worker does not hold"
        if problem:
            message = f"lease {lease.lease_id} contradicts the fork, which is at {fork.head} with bound {opened.bound}"
            self._say(Code.LEASE_CONTRADICTS, f"{message}: {problem}", lease=lease.lease_id)

    def _check_lease_numbers(self, fork: Fork) -> None:
        """Check that the leases so far are numbered without gaps; a gap is a lease without a line.

        It runs only before an entry of another kind, because leases that are granted together are written in any order.
        """
        gap = fork.newest_lease - len(fork.lease_ids)
        if gap > fork.num_missing_leases:
            while fork.next_lease in fork.lease_ids:
                fork.next_lease += 1
            message = f"leases are numbered from 1 in each fork, and {gap} of them have no line; the first is "
            self._say(Code.LEASE_MISSING, f"{message}{fork.next_lease}", lease=fork.next_lease, missing=gap)
        fork.num_missing_leases = max(gap, fork.num_missing_leases)

    def _lost(self, fork: Fork, lost: LostEntry) -> None:
        key = (lost.lease_id, lost.group, lost.sample)
        # A loss may be of a lease that an earlier fork granted: the newest one with these numbers counts.
        leased = next((f.leases[key] for f in reversed(self.history.forks) if key in f.leases), None)
        # A result ends a lease, unless its sample is unfinished (abandoned): such a lease is lost as well.
        if leased is None or leased.lost_at >= 0 or (leased.returned_at >= 0 and not leased.abandoned):
            what = "was never granted" if leased is None else "ended before"
            self._say(Code.LOST_CONTRADICTS, f"lease {lost.lease_id} is lost, but it {what}", lease=lost.lease_id)
            return
        if leased.lease.worker_id != lost.worker_id:
            message = f"worker {lost.worker_id} lost lease {lost.lease_id}, which worker {leased.lease.worker_id} had"
            self._say(Code.LOST_CONTRADICTS, message, lease=lost.lease_id)
        leased.lost_at, leased.lost_why = self.num_lines, lost.why
        _end_live(fork, leased)

    def _result(self, fork: Fork, result: ResultEntry) -> None:
        # The answer may come for a lease of an ancestor: workers live on while a trainer restarts.
        leased = fork.find_lease((result.lease_id, result.group, result.sample), result.worker_id)
        is_its_workers = leased is not None and leased.lease.worker_id == result.worker_id
        # Only the first result of its own worker ends a lease.
        if leased is not None and is_its_workers and leased.returned_at < 0:
            leased.returned_at = self.num_lines
            leased.abandoned = result.verdict is AdmissionVerdict.ABANDONED
            _end_live(fork, leased)
        region = fork.regions.get(result.worker_id, result.region)
        if region != result.region:
            message = f"worker {result.worker_id} had leases in {region!r}, and its result is from {result.region!r}"
            self._say(Code.LEASE_CONTRADICTS, message, lease=result.lease_id)
        found = self._witness(fork, result)
        if found is not None:
            self._compare(result, leased, found)
        is_replay = False
        if result.frame is not None:
            place = (result.frame, result.index)
            # Another fork had a result for this place in a frame: this one reads the kept frames again.
            is_replay = self.first_verdict_by.setdefault(place, fork) is not fork
            if fork.leases:  # a fork that has leased nothing yet is still replaying results
                epoch = result.frame.epoch
                self.newest_verdict[epoch] = max(place, self.newest_verdict.get(epoch, place))
        # The journal's own line counts before the frame, which the worker wrote.
        purpose = leased.lease.purpose if leased else found.purpose if found else None
        fork.results.append(Returned(self.num_lines, result, purpose, is_replay))
        self._verdict(fork, result, leased, found)

    def _verdict(self, fork: Fork, result: ResultEntry, leased: Leased | None, found: Witness | None) -> None:
        sample = (result.group, result.sample)
        names = {"lease": result.lease_id, "group": result.group, "sample": result.sample}
        ended = fork.has_ended(sample)
        taken_in = result.verdict in (AdmissionVerdict.ACCEPTED, AdmissionVerdict.ABANDONED)
        # Results that were refused may be of anything; only what was taken in must have been leased.
        if taken_in and leased is None:
            message = f"sample {result.sample} of group {result.group} was {result.verdict} but never leased"
            self._say(Code.RESULT_WITHOUT_LEASE, message, **names)
        if taken_in and leased is not None and leased.lease.worker_id != result.worker_id:
            message = f"worker {leased.lease.worker_id} had lease {result.lease_id}"
            self._say(Code.LEASE_CONTRADICTS, f"{message}, and worker {result.worker_id} its result", **names)
        if result.verdict is AdmissionVerdict.DUPLICATE and not ended and fork.waiting(sample) is None:
            self._say(Code.DUPLICATE_OF_NOTHING, f"no result of sample {sample} was ever accepted", **names)
        if result.verdict is not AdmissionVerdict.ACCEPTED:
            return
        if sample in fork.accepted or ended:
            self._say(Code.ACCEPTED_TWICE, f"group {result.group} already has sample {result.sample}", **names)
            return
        # A sample that should not have been accepted is reported, and still waits: it may be trained on below.
        unfit = (
            "abandoned" if result.stop_reason == "abandoned" else "not kept in any frame" if not result.frame else ""
        )
        future = next((run.policy for run in result.policies if not self.history.reached(run.policy)), None)
        if future:
            unfit = f"sampled by {future}, a policy that no fork had reached"
        elif leased is not None and self._is_early(leased.lease, result):
            unfit = f"sampled by {result.policies[0].policy}, and its lease starts at {leased.lease.start_at}"
        elif result.sample >= fork.opened.group_size:
            unfit = f"beyond the {fork.opened.group_size} samples of a group"
        if unfit:
            self._say(Code.ACCEPTED_UNFIT, f"sample {result.sample} of group {result.group} is {unfit}", **names)
        # Staleness is computed from the frame's policies where there is a frame, and not from the line's claim.
        if found is not None and found.policies != result.policies:
            result = replace(result, policies=found.policies)
        accepted = Accepted(self.num_lines, result, kept=found)
        fork.accepted[sample] = accepted
        fork.wait(sample, accepted)

    def _is_early(self, lease: LeaseEntry, result: ResultEntry) -> bool:
        """Return whether a token was sampled by an older policy than its lease starts at.

        Numbers of leases repeat from fork to fork, so only policies of the lease's own fork are compared.
        """
        start = lease.start_at
        return any(run.policy.fork == start.fork and run.policy.version < start.version for run in result.policies)

    def _witness(self, fork: Fork, result: ResultEntry) -> Witness | None:
        if result.frame is None:
            return None
        before = fork.verdict_at.setdefault((result.frame, result.index), self.num_lines)
        if before != self.num_lines:
            message = f"line {before + 1} already has a result for trajectory {result.index} of frame {result.frame}"
            self._say(Code.FRAME_JUDGED_TWICE, message, frame=str(result.frame), index=result.index)
            return None  # its content was compared once
        frame = self._evidence.frames.get(result.frame)
        if frame is None:
            self.missing[self.num_lines] = result.frame
            return None
        if not frame:  # the frame is unreadable, which kept_files.py reports once
            return None
        if result.index >= len(frame):
            message = f"frame {result.frame} has {len(frame)} trajectories, no index {result.index}"
            self._say(Code.FRAME_CONTRADICTS, message, frame=str(result.frame), index=result.index)
            return None
        return frame[result.index]

    def _compare(self, result: ResultEntry, leased: Leased | None, found: Witness) -> None:
        pairs = [
            ("digest", result.digest.hex(), found.digest.hex()),
            ("lease", result.lease_id, found.lease_id),
            ("group", result.group, found.group),
            ("sample", result.sample, found.sample),
            ("worker", result.worker_id, found.worker_id),
            ("tokens", result.num_tokens, found.num_tokens),
            ("stop", result.stop_reason, found.stop_reason),
        ]
        # Item and purpose of what was not accepted are the worker's claim, and bind nobody.
        if leased is not None and result.verdict is AdmissionVerdict.ACCEPTED:
            pairs.append(("item", leased.lease.item, found.item))
            pairs.append(("purpose", leased.lease.purpose, found.purpose))
        if result.policies != found.policies:
            pairs.append(("policies", _runs(result.policies), _runs(found.policies)))
        for name, said, kept in pairs:
            if said != kept:
                self._say(
                    Code.FRAME_CONTRADICTS,
                    f"{name} is {said} in the journal and {kept} in trajectory {result.index} of frame {result.frame}",
                    name=name,
                    journal=said,
                    frame=kept,
                )

    def _doubt(self, fork: Fork, doubt: DoubtEntry) -> None:
        if not self.history.reached(doubt.since) or doubt.policy != fork.head:
            message = f"worker {doubt.worker_id} is in doubt from {doubt.since} to {doubt.policy}, while the fork is at"
            self._say(Code.DOUBT_CONTRADICTS, f"{message} {fork.head}", policy=str(doubt.since))
        fork.doubts.append((self.num_lines, doubt))

    # ---- weights --------------------------------------------------------------------------------------------------

    def _publish(self, fork: Fork, published: PublishEntry) -> None:
        policy, digest = published.policy, fork.published.setdefault(published.policy, published.digest)
        if digest != published.digest:
            message = f"{policy} was published before with another digest"
            self._say(Code.PUBLISH_CONTRADICTS, message, found=published.digest.hex(), expected=digest.hex())
        # Versions are published one by one, each after the step that made it.
        if not _has_reached(fork, policy):
            self._say(Code.PUBLISH_CONTRADICTS, f"{policy} is published, but the fork is at {fork.head}")
        elif policy.version != fork.next_published:
            message = f"{policy} is published, where version {fork.next_published} comes next"
            self._say(Code.PUBLISH_CONTRADICTS, message, policy=str(policy))
        else:
            fork.next_published += 1
        # A fork publishes the restored weights under its own first version; they must be those of the checkpoint.
        parent = fork.opened.parent
        if parent is not None and fork.parent is not None and policy.version == parent.version:
            restored = fork.parent.published.get(parent, published.digest)
            if restored != published.digest:
                message = f"{policy} has another digest than {parent}, from which it was restored"
                self._say(Code.PUBLISH_CONTRADICTS, message, found=published.digest.hex(), expected=restored.hex())

    def _export(self, fork: Fork, export: ExportEntry) -> None:
        if export.policy != fork.head or export.policy not in fork.published:
            message = f"{export.policy} was exported, which is not the version that the fork published last"
            self._say(Code.PUBLISH_CONTRADICTS, message, policy=str(export.policy), expected=str(fork.head))
        fork.exported = export.digest

    def _end(self, fork: Fork, end: EndEntry) -> None:
        fork.ended = end.how
        if fork.batches or fork.published:
            batches.published(fork, fork.head.version, self._findings, self.place)
        if end.how == "succeeded":
            batches.evaluations_ended(fork, self._findings, self.place)

    def _checkpoint(self, fork: Fork, checkpoint: CheckpointEntry) -> None:
        # The line comes when the files are written. The state is that of the earlier line that it covers.
        expected = fork.head_at(checkpoint.covers)
        if fork.batches:
            batches.published(fork, expected.version, self._findings, self.place)
        if checkpoint.policy != expected or not fork.at < checkpoint.covers <= self.num_lines:
            self._say(
                Code.CHECKPOINT_CONTRADICTS,
                f"a checkpoint of {checkpoint.policy} covers the lines before {checkpoint.covers}, where the fork is "
                f"at {expected}",
                policy=str(checkpoint.policy),
                covers=checkpoint.covers,
                expected=str(expected),
            )
        fork.checkpoints.append((self.num_lines, checkpoint))
        fork.checkpointed.setdefault(checkpoint.policy, checkpoint)

    def _prune(self, fork: Fork, prune: PruneEntry) -> None:
        self.kept_from = max(prune.kept_from, self.kept_from) if self.kept_from else prune.kept_from
        # A restore from this checkpoint reads two things again: samples that wait, and those of batches from its
        # version on.
        for needed in (fork.oldest_waiting(), fork.oldest_since(prune.policy.version)):
            if needed is None or needed.frame >= prune.kept_from:
                continue
            group, sample = needed.sample
            self._say(
                Code.PRUNED_TOO_EARLY,
                f"frames before {prune.kept_from} hold samples that a restore from {prune.policy} needs, such as "
                f"{sample} of group {group}",
                group=group,
                sample=sample,
                frame=str(needed.frame),
            )
        if all(prune.policy not in segment.checkpointed for segment, _ in fork.segments()):
            self._say(Code.PRUNED_TOO_EARLY, f"there is no checkpoint of {prune.policy}", policy=str(prune.policy))

    def _say(self, code: Code, message: str, **values: object) -> None:
        self._findings.add(code, self.place, message, **values)


def _lineage(opened: OpenEntry, parent: Fork | None) -> Lineage:
    try:
        if opened.parent is not None and parent is not None:
            return parent.lineage.restored(opened.fork, opened.parent)
        return Lineage(opened.fork, (opened.parent,) if opened.parent else ())
    except ValueError:  # reported already: the fork is not new, or its parent is not on the lineage
        return Lineage(opened.fork)


def _hedges_another(fork: Fork, lease: LeaseEntry) -> bool:
    earlier = fork.live.get((lease.group, lease.sample))
    return earlier is not None and earlier.lease.lease_id == lease.hedges and earlier.lease.worker_id != lease.worker_id


def _end_live(fork: Fork, leased: Leased) -> None:
    sample = (leased.lease.group, leased.lease.sample)
    hedge = fork.hedges.get(sample)
    if hedge is leased:
        del fork.hedges[sample]
    elif fork.live.get(sample) is leased:
        del fork.live[sample]
        if hedge is not None:  # it goes on in the place of the first lease
            fork.live[sample] = fork.hedges.pop(sample)


def _has_reached(fork: Fork, policy: Policy) -> bool:
    return policy.fork == fork.number and fork.lineage.first_version <= policy.version <= fork.head.version


def _runs(policies: tuple[PolicyRun, ...]) -> list[list[int]]:
    return [[r.policy.fork, r.policy.version, r.num_tokens, *[1] * r.kept_kv] for r in policies[:SHOWN_RUNS]]
