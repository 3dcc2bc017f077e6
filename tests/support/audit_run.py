"""A trainer's run in small, written by the real journal, spool, codec and digests: what audits are tested on.

`AuditRun` is the trainer's shell without a ledger: the test says what happens, it writes what a trainer would write.
`honest_run` plays a whole history: two kills, three forks, evaluations, drops of each kind, duplicates, losses,
abandoned samples. `Forger` changes a finished run as somebody could who wants it to look right: it knows the schema and
recomputes everything that follows from what it changed, except the frames' contents.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from periplus.audit import records as audit
from periplus.audit.auditor import Report
from periplus.audit.journal import AuditJournal
from periplus.audit.read import audit_run, frame_trajectories, round_to_bf16
from periplus.audit.seals import SEALED, Sealer
from periplus.codec import trajectory as codec
from periplus.codec.frame import CodecId, Frame, pack, unpack
from periplus.job.run_directory import RunDirectory
from periplus.publication import JobAuthority, PublisherKey
from periplus.spool.format import Durability, segment_name
from periplus.spool.format import Position as SpoolPosition
from periplus.spool.reader import SpoolReader
from periplus.spool.spool import Spool
from periplus.values.digest import state_digest
from periplus.values.policy import Lineage, Policy, staleness
from periplus.values.record import Record, RecordKind
from periplus.values.trajectory import (
    PolicyRun,
    Purpose,
    SamplingParams,
    StopReason,
    Trajectory,
    content_digest,
    read_only,
    token_ids,
)
from periplus.values.transport_keys import FrameKey, pack_keyed
from periplus.values.weight_state import Tensor, WeightState, write_safetensors
from tests.support.keys import AUTHORITY

JOB = "sums-1"
FORGER = JobAuthority.from_private_bytes(bytes(range(1, 33)))
"""One that somebody made who has no key of this run."""

_NO_SEAL = audit.SealEntry(key=bytes(32), certificate=bytes(64), signature=bytes(64))
"""In place of a seal that is signed later."""

EVAL_GROUPS_START = 1 << 40


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that was given out."""

    lease: audit.LeaseEntry


@dataclass(frozen=True, slots=True)
class Kept:
    """A result that was written."""

    result: audit.ResultEntry
    purpose: Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a checkpoint keeps."""

    policy: Policy
    lineage: Lineage
    manifest: bytes
    covers: int
    next_group: int
    waiting: dict[int, dict[int, Kept]]
    open_groups: tuple[int, ...]
    batches_root: bytes
    state: WeightState


@dataclass(slots=True, kw_only=True)
class AuditRun:
    """One run directory. Groups are opened by `open_group`, and end in `consume` or `drop`."""

    root: Path
    bound: int = 1
    group_size: int = 2
    groups_per_step: int = 2
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    time_s: float = 1.7e9
    lineage: Lineage = field(default_factory=lambda: Lineage(0))
    policy: Policy = field(default_factory=lambda: Policy(0, 0))
    next_group: int = 0
    next_eval_group: int = EVAL_GROUPS_START
    next_lease: int = 1
    waiting: dict[int, dict[int, Kept]] = field(default_factory=dict)
    open_groups: set[int] = field(default_factory=set)
    batches_root: bytes = audit.START_OF_BATCHES
    checkpoints: dict[Policy, Snapshot] = field(default_factory=dict)
    previous: Snapshot | None = None
    state: WeightState = field(default_factory=dict)
    is_sealed: bool = True  # as versions before seals wrote runs, if not
    sealer: Sealer | None = None
    journal: AuditJournal = field(init=False)
    store: Spool = field(init=False)

    # ---- starts and ends ------------------------------------------------------------------------------------------

    def start(self, parent: Policy | None = None) -> None:
        """A trainer starts: afresh, or from a checkpoint."""
        run = RunDirectory(self.root)
        run.create()
        job = {
            "staleness": self.bound,
            "seed": 3,
            "train": {"groups_per_step": self.groups_per_step},
            "algorithm": {"name": "grpo", "group_size": self.group_size},
        }
        run.config.write_text(json.dumps(job))
        self.journal = AuditJournal.open(run.audit)
        self.store = Spool.open(
            self.root / "trajectories", durability=Durability.PROCESS, max_bytes=1 << 30, segment_bytes=1
        )
        snapshot = self.checkpoints[parent] if parent else None
        if snapshot:
            self.lineage = snapshot.lineage.restored(self.lineage.fork + 1, snapshot.policy)
            self.policy = Policy(self.lineage.fork, snapshot.policy.version)
            self.next_group, self.batches_root = snapshot.next_group, snapshot.batches_root
            self.open_groups, self.waiting = set(snapshot.open_groups), {}
            self.next_eval_group, self.next_lease = EVAL_GROUPS_START, 1
        self.previous = snapshot
        self.say(
            audit.OpenEntry(
                job_id=JOB,
                fork=self.policy.fork,
                parent=parent,
                manifest=snapshot.manifest if snapshot else None,
                resumed_at=snapshot.covers if snapshot else None,
                bound=self.bound,
                group_size=self.group_size,
                groups_per_step=self.groups_per_step,
                seed=3,
                algorithm="grpo",
                settings=blake3(run.config.read_bytes()).digest() if self.is_sealed else None,
                schema=audit.SCHEMA if self.is_sealed else audit.UNSEALED_SCHEMA,
            )
        )
        for kept in [k for group in (snapshot.waiting if snapshot else {}).values() for k in group.values()]:
            self._judged(kept.result)
            self.waiting.setdefault(kept.result.group, {})[kept.result.sample] = kept
        self.sealer = None
        if self.is_sealed:
            sealer = sealer_of(AUTHORITY, self.policy.fork)
            self.say(sealer.seal(*self.journal.position))
            self.sealer = sealer
        self.publish(snapshot.state if snapshot else None)

    def kill(self) -> None:
        """The trainer is gone, without a word."""
        self.journal.close()
        self.store.close()

    def end(self, how: str = "succeeded") -> None:
        self.say(audit.EndEntry(how=how))
        if how == "succeeded":
            final = RunDirectory(self.root).final
            final.mkdir(exist_ok=True)
            write_safetensors(final / "model.safetensors", round_to_bf16(self.state))
        self.kill()

    def say(self, record: audit.Entry) -> int:
        self.time_s += 0.01
        seal = self.sealer.seal if self.sealer and isinstance(record, SEALED) else None
        return self.journal.append(record, self.time_s, seal)

    # ---- leases and results ---------------------------------------------------------------------------------------

    def open_group(self, purpose: Purpose = Purpose.TRAIN) -> int:
        if purpose is Purpose.EVAL:
            self.next_eval_group += 1
            return self.next_eval_group - 1
        self.next_group += 1
        self.open_groups.add(self.next_group - 1)
        return self.next_group - 1

    def lease(self, group: int, sample: int, worker: str = "rollout-eu-0", version: int | None = None) -> Held:
        """`version`: of the group's class, the present one by default."""
        is_eval = group >= EVAL_GROUPS_START
        version = self.policy.version if version is None else version
        lease = audit.LeaseEntry(
            lease_id=self.next_lease,
            group=group,
            sample=sample,
            item=group % 97,
            purpose=Purpose.EVAL if is_eval else Purpose.TRAIN,
            worker_id=worker,
            region="eu-west",
            start_at=Policy(self.policy.fork, max(version, self.lineage.first_version)),
            consume_by_version=version + self.bound,
        )
        self.next_lease += 1
        self.say(lease)
        return Held(lease)

    def lose(self, held: Held, why: str = "expired") -> None:
        lease = held.lease
        self.say(
            audit.LostEntry(
                lease_id=lease.lease_id, group=lease.group, sample=lease.sample, worker_id=lease.worker_id, why=why
            )
        )

    def trajectory(
        self, held: Held, *, policies: Sequence[Policy] = (), stop: StopReason = StopReason.EOS, reward: float = 1.0
    ) -> Trajectory:
        """What a worker makes of a lease; by default all by the policy that it starts at."""
        lease, rng = held.lease, self.rng
        runs = tuple(PolicyRun(policy, rng.randint(2, 5)) for policy in policies or (lease.start_at,))
        num_tokens = sum(run.num_tokens for run in runs)
        return Trajectory(
            lease_id=lease.lease_id,
            group=lease.group,
            sample=lease.sample,
            item=lease.item,
            purpose=lease.purpose,
            prompt_ids=token_ids([1, 2, lease.item]),
            completion_ids=token_ids(rng.choices(range(90), k=num_tokens)),
            logprobs=read_only([-rng.random() for _ in range(num_tokens)], np.float32),
            mask=read_only([True] * num_tokens, np.bool_),
            policies=runs,
            reward=reward,
            stop_reason=stop,
            sampling=SamplingParams(temperature=1.0),
            worker_id=lease.worker_id,
            generation_s=0.5,
        )

    def keep(self, trajectories: Sequence[Trajectory]) -> audit.FrameId:
        """Write a frame to the store."""
        payload = codec.encode(trajectories)
        position = self.store.append(pack(Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, payload)))
        return audit.FrameId(position.epoch, position.sequence)

    def arrive(
        self,
        *trajectories: Trajectory,
        verdict: audit.AdmissionVerdict = audit.AdmissionVerdict.ACCEPTED,
        why: str = "",
    ) -> None:
        """A frame comes in and is judged."""
        frame = self.keep(trajectories)
        for index, t in enumerate(trajectories):
            result = audit.ResultEntry(
                verdict=verdict,
                why=why,
                lease_id=t.lease_id,
                group=t.group,
                sample=t.sample,
                worker_id=t.worker_id,
                region="eu-west",
                digest=content_digest(t),
                num_tokens=len(t.completion_ids),
                policies=t.policies,
                stop_reason=t.stop_reason,
                frame=frame,
                index=index,
            )
            self._judged(result)
            if verdict is audit.AdmissionVerdict.ACCEPTED:
                self.waiting.setdefault(t.group, {})[t.sample] = Kept(result, t.purpose)

    def _judged(self, result: audit.ResultEntry) -> None:
        self.say(result)

    def fill(self, group: int, **how: Any) -> None:
        """Lease and accept every sample of a group that is not in, in one frame."""
        missing = [s for s in range(self.group_size) if s not in self.waiting.get(group, {})]
        if missing:
            policies = [p.version for p in how.get("policies", ()) if p.fork == self.policy.fork]
            version = min([*policies, self.policy.version])
            held = [self.lease(group, sample, version=version) for sample in missing]
            self.arrive(*(self.trajectory(h, **how) for h in held))

    # ---- what becomes of groups -----------------------------------------------------------------------------------

    def drop(self, group: int, why: str) -> None:
        kept = self.waiting.pop(group, {})
        samples = [audit.DroppedSample(s, k.result.digest, k.result.num_tokens) for s, k in sorted(kept.items())]
        self.say(audit.DropEntry(group=group, why=why, samples=tuple(samples)))
        self.open_groups.discard(group)

    def consume(self, groups: Iterable[int], *, trained: bool = True, why: str = "", blind: bool = False) -> None:
        """A step: the version rises. `blind`: do not mind tokens that cannot have an age."""
        kept = [self.waiting[group][sample] for group in sorted(groups) for sample in sorted(self.waiting[group])]
        runs = [run for k in kept for run in k.result.policies]
        ages = _ages(runs, self.policy, self.lineage, blind=blind)
        samples = tuple(audit.UsedSample(k.result.group, k.result.sample, k.result.digest) for k in kept)
        root = audit.batch_root([used.digest for used in samples])
        self.say(
            audit.ConsumeEntry(
                policy=self.policy, trained=trained, why=why, samples=samples, root=root, staleness_tokens=ages
            )
        )
        for group in groups:
            del self.waiting[group]
            self.open_groups.discard(group)
        self.batches_root = audit.next_batches_root(self.batches_root, root)
        self.policy = self.policy.next()
        self.publish()

    def evaluate(self, num_items: int = 3) -> None:
        groups = [self.open_group(Purpose.EVAL) for _ in range(num_items)]
        for group in groups:
            self.arrive(self.trajectory(self.lease(group, 0)))
        kept = [self.waiting.pop(group)[0] for group in groups]
        samples = tuple(audit.UsedSample(k.result.group, k.result.sample, k.result.digest) for k in kept)
        self.say(audit.EvalEntry(policy=self.policy, samples=samples))

    # ---- weights --------------------------------------------------------------------------------------------------

    def publish(self, restored: WeightState | None = None) -> None:
        values = np.random.default_rng((self.policy.fork, self.policy.version)).normal(size=8).astype(np.float32)
        self.state = restored or {"layer.weight": Tensor("F32", (2, 4), values)}
        self.say(audit.PublishEntry(policy=self.policy, digest=state_digest(round_to_bf16(self.state))))
        if self.policy.version > self.lineage.first_version:
            RunDirectory(self.root).append(Record(kind=RecordKind.STEP, policy=self.policy, time_s=self.time_s))

    def checkpoint(self) -> None:
        folder = RunDirectory(self.root).checkpoints / str(self.policy)
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", self.state)
        (folder / "optimizer.pt").write_bytes(b"moments of " + str(self.policy).encode())
        names = ("model.safetensors", "optimizer.pt")
        position, before = self.journal.position, self.previous
        manifest = {
            "schema": "periplus.checkpoint/1",
            "job_id": JOB,
            "fork": self.policy.fork,
            "version": self.policy.version,
            "parts": [
                {
                    "name": name,
                    "bytes": (folder / name).stat().st_size,
                    "blake3": blake3((folder / name).read_bytes()).hexdigest(),
                }
                for name in names
            ],
            "parents": [[p.fork, p.version] for p in self.lineage.parents],
            "progress": {"steps": float(self.policy.version)},
            "audit": {"n": position.n, "prev": position.prev.hex()},
            "weights": state_digest(round_to_bf16(self.state)).hex(),
            "parent": before and [before.policy.fork, before.policy.version],
            "parent_manifest": before and before.manifest.hex(),
            "next_group": self.next_group,
            "open_groups": sorted(self.open_groups),
            "batches_root": self.batches_root.hex(),
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
        digest = blake3((folder / "manifest.json").read_bytes()).digest()
        self.say(audit.CheckpointEntry(policy=self.policy, manifest=digest, covers=position.n))
        self.previous = self.checkpoints[self.policy] = Snapshot(
            policy=self.policy,
            lineage=self.lineage,
            manifest=digest,
            covers=position.n,
            next_group=self.next_group,
            waiting={group: dict(samples) for group, samples in self.waiting.items()},
            open_groups=tuple(sorted(self.open_groups)),
            batches_root=self.batches_root,
            state=self.state,
        )

    def prune(self) -> None:
        """Let go of the frames that nothing waits for."""
        frames = [k.result.frame for group in self.waiting.values() for k in group.values() if k.result.frame]
        floor = min(frames)
        self.say(audit.PruneEntry(kept_from=floor, policy=self.policy))
        self.journal.flush()
        self.store.trim(SpoolPosition(floor.epoch, floor.sequence))


def honest_run(
    root: Path, *, group_size: int = 2, seed: int = 7, prune: bool = False, is_sealed: bool = True
) -> AuditRun:
    """Three forks, two of them killed behind a checkpoint that did not cover all. `prune`: at the first checkpoint."""
    run = AuditRun(root=root, group_size=group_size, rng=random.Random(seed), is_sealed=is_sealed)
    run.start()
    run.evaluate()
    _fork(run, steps=4, checkpoint_after=2, prune=prune)
    run.keep([run.trajectory(run.lease(run.open_group(), 0))])  # in a frame, and killed before it was judged
    run.kill()
    run.start(Policy(0, 2))
    _fork(run, steps=3, checkpoint_after=2)
    run.kill()
    run.start(Policy(1, 4))
    _fork(run, steps=3, checkpoint_after=2)
    run.evaluate()
    run.end()
    return run


def _fork(run: AuditRun, *, steps: int, checkpoint_after: int, prune: bool = False) -> None:
    """Steps with all that can happen to a group. At the checkpoint one group waits whole, and one is half in."""
    on_their_way: list[Held] = []
    for step in range(1, steps + 1):
        for held in on_their_way:
            run.arrive(run.trajectory(held))
        on_their_way.clear()
        for group in sorted(run.open_groups):  # half in, or of an earlier fork: what is missing is leased again
            if _oldest(run, group) + run.bound < run.policy.version:
                run.drop(group, "overdue")
            else:
                run.fill(group)
        whole = sorted(run.waiting)
        while len(whole) < run.groups_per_step:
            whole.append(run.open_group())
            _troubled(run, whole[-1], step)
            run.fill(whole[-1], policies=_swapped(run))
        run.fill(run.open_group())
        half = run.open_group()
        run.arrive(run.trajectory(run.lease(half, 0)))
        last = run.lease(half, run.group_size - 1)
        if step == checkpoint_after:
            on_their_way.append(last)
        else:
            run.drop(half, ("failed", "overdue", "filtered")[step % 3])
            run.arrive(run.trajectory(last), verdict=audit.AdmissionVerdict.REFUSED, why="late")
        run.consume(whole[: run.groups_per_step], trained=step != 3, why="no_token" if step == 3 else "")
        if step == checkpoint_after:
            run.checkpoint()
            if prune:
                run.prune()


def _troubled(run: AuditRun, group: int, step: int) -> None:
    """Before a group comes in whole: an abandoned sample, a refused one, leases that are lost, one of them in vain for
    somebody else, and a second copy.
    """
    slow = run.lease(group, 1, "rollout-ap-0")
    run.lose(slow)
    run.lease(group, 1)
    run.arrive(run.trajectory(slow))  # first all the same: the lease before this line is released
    lost = run.lease(group, 0, "rollout-ap-0")
    run.lose(lost, ("expired", "worker_gone", "failed")[step % 3])
    given_up = run.lease(group, 0)
    run.arrive(run.trajectory(given_up, stop=StopReason.ABANDONED), verdict=audit.AdmissionVerdict.ABANDONED)
    run.lose(given_up, "failed")
    refused = run.lease(group, 0)
    run.arrive(run.trajectory(refused), verdict=audit.AdmissionVerdict.REFUSED, why="unfit")
    first = run.lease(group, 0)
    run.arrive(run.trajectory(first))
    run.arrive(run.trajectory(lost), verdict=audit.AdmissionVerdict.DUPLICATE, why="duplicate")


def _swapped(run: AuditRun) -> tuple[Policy, ...]:
    """Weights that were swapped within a generation, where the bound allows an older policy."""
    older = Policy(run.policy.fork, run.policy.version - 1)
    return (older, run.policy) if older in run.lineage and older.version >= 0 else ()


def _oldest(run: AuditRun, group: int) -> int:
    kept = run.waiting.get(group, {}).values()
    return min((r.policy.version for k in kept for r in k.result.policies), default=run.policy.version)


# ---- forging ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Entry:
    """A line to be written again. Equal only to itself, so that it can be found after others were moved."""

    time_s: float
    record: audit.Entry
    was: int


class Forger:
    """Reads a finished run's journal into `entries`, to be edited; `reseal` makes everything else agree with them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "audit.jsonl"
        lines = self.path.read_bytes().splitlines()
        parsed = [audit.from_line(line, "journal") for line in lines]
        self.entries = [Entry(line.time_s, line.record, line.n) for line in parsed]

    def indices(self, fits: Callable[[Any], bool]) -> list[int]:
        """Where the records are for which a test holds."""
        return [i for i, entry in enumerate(self.entries) if fits(entry.record)]

    def edit(self, place: int, /, **changes: Any) -> None:
        self.entries[place].record = replace(self.entries[place].record, **changes)

    def insert(self, index: int, record: audit.Entry) -> None:
        self.entries.insert(index, Entry(self.entries[index - 1].time_s, record, -1))

    def write_unsealed(self) -> None:
        """With the edits, and chain, roots and positions as they were: what a clumsy hand leaves."""
        lines = self.path.read_bytes().splitlines()
        originals = [audit.from_line(line, "journal") for line in lines]
        written = [
            lines[e.was]
            if e.was >= 0 and e.record == originals[e.was].record
            else audit.to_line(originals[e.was].n, originals[e.was].prev, e.time_s, e.record)
            for e in self.entries
        ]
        self.path.write_bytes(b"".join(line + b"\n" for line in written))

    def reseal(self, authority: JobAuthority | None = None) -> None:
        """Recompute numbers, chain, roots, claimed ages, manifests and the hashes of these.

        The trainers' keys are gone: seals are signed anew, with keys of the forger's, certified by its own authority.
        """
        before = self.path.read_bytes()
        self._place_seals()
        if self._write(None) != before:
            self._write(authority or FORGER)

    def _write(self, authority: JobAuthority | None) -> bytes:
        """Write journal and manifests, with seals by that authority's trainers or as they were; the journal's text."""
        sealers: dict[int, Sealer] = {}
        fork = 0
        now_at = {entry.was: i for i, entry in enumerate(self.entries) if entry.was >= 0}
        chain, lines = [audit.START_OF_CHAIN], []
        manifests: dict[Policy, bytes] = {}
        covers: dict[Policy, int] = {}
        roots: dict[Policy, bytes] = {}
        policies: dict[tuple[int, int, bytes], tuple[PolicyRun, ...]] = {}
        lineage = Lineage(0)
        for n, entry in enumerate(self.entries):
            record = entry.record
            if isinstance(record, audit.OpenEntry) and authority is not None:
                fork = record.fork
                sealers[fork] = sealer_of(authority, fork, record.job_id, secret=200)
            match record:
                case audit.SealEntry() if fork in sealers:
                    record = sealers[fork].seal(n, chain[-1])
                case audit.OpenEntry(parent=Policy() as parent):
                    lineage = lineage.restored(record.fork, parent) if parent in lineage else Lineage(record.fork)
                    record = replace(record, manifest=manifests.get(parent), resumed_at=covers.get(parent))
                    roots[Policy(record.fork, parent.version)] = roots.get(parent, audit.START_OF_BATCHES)
                case audit.OpenEntry():
                    roots[Policy(record.fork, 0)] = audit.START_OF_BATCHES
                case audit.ResultEntry():
                    policies[record.group, record.sample, record.digest] = record.policies
                case audit.ConsumeEntry():
                    record = _restated(record, lineage, policies)
                    before = roots.get(record.policy, audit.START_OF_BATCHES)
                    roots[record.policy.next()] = audit.next_batches_root(before, record.root)
                case audit.CheckpointEntry():
                    at = self._new_place(record.covers, now_at, n)
                    digest = self._forge_manifest(record, at, chain[at], roots, manifests)
                    record = replace(record, covers=at, manifest=digest)
                    manifests[record.policy], covers[record.policy] = digest, at
                case _:
                    pass
            line = audit.to_line(n, chain[-1], entry.time_s, record)
            lines.append(line)
            chain.append(audit.chain_hash(line))
        text = b"".join(line + b"\n" for line in lines)
        self.path.write_bytes(text)
        return text

    def _place_seals(self) -> None:
        """One seal behind each line that has one, and behind no other but the first of its fork."""
        placed: list[Entry] = []
        is_certified = False
        for entry in self.entries:
            follows = bool(placed) and isinstance(placed[-1].record, SEALED)
            is_seal = isinstance(entry.record, audit.SealEntry)
            if is_seal and is_certified and not follows:
                continue
            if is_certified and follows and not is_seal and not isinstance(entry.record, audit.OpenEntry):
                placed.append(Entry(entry.time_s, _NO_SEAL, -1))
            is_certified = (is_certified or is_seal) and not isinstance(entry.record, audit.OpenEntry)
            placed.append(entry)
        if is_certified and isinstance(placed[-1].record, SEALED):
            placed.append(Entry(placed[-1].time_s, _NO_SEAL, -1))
        self.entries = placed

    def _new_place(self, was: int, now_at: dict[int, int], at_most: int) -> int:
        later = [now for before, now in now_at.items() if before >= was]
        return min([*later, at_most])

    def _forge_manifest(
        self,
        record: audit.CheckpointEntry,
        at: int,
        prev: bytes,
        roots: dict[Policy, bytes],
        manifests: dict[Policy, bytes],
    ) -> bytes:
        path = self.root / "checkpoints" / str(record.policy) / "manifest.json"
        if not path.exists():
            return record.manifest
        manifest = json.loads(path.read_text())
        if not isinstance(manifest["audit"], dict):
            return blake3(path.read_bytes()).digest()
        manifest["audit"] = {"n": at, "prev": prev.hex()}
        manifest["batches_root"] = roots.get(record.policy, audit.START_OF_BATCHES).hex()
        if manifest["parent"]:
            parent = manifests.get(Policy(*manifest["parent"]))
            manifest["parent_manifest"] = parent.hex() if parent else None
        for part in manifest["parts"]:
            if not (path.parent / part["name"]).exists():
                continue
            data = (path.parent / part["name"]).read_bytes()
            part.update(bytes=len(data), blake3=blake3(data).hexdigest())
        path.write_text(json.dumps(manifest))
        return blake3(path.read_bytes()).digest()

    def rewrite_frames(self, change: Callable[[Trajectory], Trajectory]) -> None:
        """Write the store again with changed trajectories, every one where it was."""
        folder = self.root / "trajectories"
        kept = list(SpoolReader.open(folder).records())
        shutil.rmtree(folder)
        for _, records in groupby(kept, key=lambda record: record.position.epoch):
            store = Spool.open(folder, durability=Durability.PROCESS, max_bytes=1 << 30, segment_bytes=1)
            for record in records:
                changed = [change(t) for t in frame_trajectories(record.data)]
                store.append(pack(Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, codec.encode(changed))))
            store.close()

    def rewrite_everything(self, change: Callable[[Trajectory], Trajectory]) -> None:
        """Frames and every digest of them: the forgery that leaves no trace on the trainer's own disk."""
        self.rewrite_frames(change)
        new: dict[tuple[audit.FrameId, int], bytes] = {}
        for record in SpoolReader.open(self.root / "trajectories").records():
            frame = audit.FrameId(record.position.epoch, record.position.sequence)
            for index, t in enumerate(frame_trajectories(record.data)):
                new[frame, index] = content_digest(t)
        renamed: dict[bytes, bytes] = {}
        for entry in self.entries:
            record_ = entry.record
            match record_:
                case audit.ResultEntry(frame=audit.FrameId() as frame):
                    renamed[record_.digest] = new[frame, record_.index]
                    entry.record = replace(record_, digest=new[frame, record_.index])
                case audit.ConsumeEntry() | audit.EvalEntry():
                    used = tuple(u._replace(digest=renamed[u.digest]) for u in record_.samples)
                    entry.record = replace(record_, samples=used)
                case audit.DropEntry():
                    dropped = tuple(d._replace(digest=renamed[d.digest]) for d in record_.samples)
                    entry.record = replace(record_, samples=dropped)
                case _:
                    pass
        self.reseal()

    def remove_frame(self, frame: audit.FrameId) -> None:
        """Its segment's file: each frame has its own here."""
        (self.root / "trajectories" / segment_name(SpoolPosition(frame.epoch, frame.sequence))).unlink()


def _restated(
    record: audit.ConsumeEntry, lineage: Lineage, policies: dict[tuple[int, int, bytes], tuple[PolicyRun, ...]]
) -> audit.ConsumeEntry:
    runs = [run for u in record.samples for run in policies.get((u.group, u.sample, u.digest), ())]
    ages = _ages(runs, record.policy, lineage, blind=True)
    root = audit.batch_root([used.digest for used in record.samples])
    return replace(record, root=root, staleness_tokens=ages)


def gateway_spool(run: Path, folder: Path, change: Callable[[Trajectory], Trajectory] | None = None) -> Path:
    """The spool of a gateway that kept every frame it sent to this run's trainer; `change` changes its trajectories."""
    spool = Spool.open(folder, durability=Durability.PROCESS, max_bytes=1 << 30)
    for number, record in enumerate(SpoolReader.open(run / "trajectories").records()):
        key = FrameKey(worker_id="rollout-eu-0", epoch=1, sequence=number)
        frame = unpack(record.data, max_payload_bytes=1 << 20)
        if change is not None:
            changed = [change(t) for t in frame_trajectories(record.data)]
            frame = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, codec.encode(changed))
        spool.append(*pack_keyed(key, frame))
    spool.close()
    return folder


def _ages(runs: Sequence[PolicyRun], consumer: Policy, lineage: Lineage, *, blind: bool) -> dict[int, int]:
    ages: dict[int, int] = {}
    for run in runs:
        try:
            age = staleness(consumer, run.policy, lineage)
        except ValueError:
            if blind:
                continue
            raise
        ages[age] = ages.get(age, 0) + run.num_tokens
    return dict(sorted(ages.items()))


def audited(root: Path, *spools: Path, authorities: Sequence[bytes] = ()) -> Report:
    """What an audit of the files says."""
    return audit_run(root, spools, lambda what, done, total: None, authorities)


def sealer_of(authority: JobAuthority, fork: int, job_id: str = JOB, *, secret: int = 100) -> Sealer:
    """A trainer with a key and its certificate; the same for each call."""
    key = PublisherKey.from_private_bytes(bytes([secret + fork % 50]) * 32)
    return Sealer(key, authority.certify(job_id, fork, key.public_key))


def copy_run(run: Path, to: Path) -> Path:
    """For a test that damages it."""
    shutil.copytree(run, to)
    return to
