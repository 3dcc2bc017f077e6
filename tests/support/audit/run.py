"""A trainer's run directory in small, written with the real journal, spool, codec and digests: what audits read.

`AuditRun` is the trainer's shell without a ledger: the test says what happens, and the run writes what a trainer would
write. It keeps just enough state (what waits, the lineage, the checkpoints) to write lines that agree with each other.
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from periplus.audit import records as audit
from periplus.audit.journal import AuditJournal
from periplus.audit.run_reader import round_to_bf16
from periplus.audit.seals import SEALED, Sealer
from periplus.codec import trajectory as codec
from periplus.codec.frame import CodecId, Frame, pack
from periplus.job.run_directory import RunDirectory
from periplus.publication import JobAuthority, PublisherKey
from periplus.spool.format import Durability
from periplus.spool.format import Position as SpoolPosition
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
from periplus.values.weight_state import Tensor, WeightState, write_safetensors
from tests.support.keys import AUTHORITY

JOB = "sums-1"
EVAL_GROUPS_START = 1 << 40
MODEL_FILES = {"config.json": b'{\n  "dtype": "float32",\n  "layers": 2\n}', "tokenizer.json": b'{"vocab": {"a": 0}}'}
"""Files of a checkpoint that final/ has as well."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A result that the ledger accepted, the purpose of its lease, and its reward."""

    result: audit.ResultEntry
    purpose: Purpose
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a run at a checkpoint, from which a new fork starts."""

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
    right_from: float = 1.0
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
    sealer: Sealer | None = None
    journal: AuditJournal = field(init=False)
    store: Spool = field(init=False)

    # ---- starts and ends ------------------------------------------------------------------------------------------

    def start(self, parent: Policy | None = None) -> None:
        """Start a trainer, without a parent afresh, else from that checkpoint in a new fork."""
        run = RunDirectory(self.root)
        run.create()
        job = {
            "schema": "periplus.job/1",
            "name": "sums",
            "model": {"path": "builtin:qwen3-tiny"},
            "environment": {"name": "spell_backward"},
            "sampling": {"max_new_tokens": 10},
            "reward": {"correct": self.right_from},
            "steps": 9,
            "staleness": self.bound,
            "seed": 3,
            "train": {"groups_per_step": self.groups_per_step},
            "algorithm": {"name": "grpo", "group_size": self.group_size},
        }
        run.config.write_text(json.dumps(job))
        self.journal = AuditJournal.open(run.audit)
        self.store = Spool.open(self.root / "trajectories", durability=Durability.PROCESS, max_bytes=1 << 30)
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
                settings=blake3(run.config.read_bytes()).digest(),
                problems=bytes(32),
            )
        )
        for kept in [k for group in (snapshot.waiting if snapshot else {}).values() for k in group.values()]:
            self.say(kept.result)
            self.waiting.setdefault(kept.result.group, {})[kept.result.sample] = kept
        sealer = sealer_of(AUTHORITY, self.policy.fork)
        self.say(sealer.seal(*self.journal.position))
        self.sealer = sealer
        self.publish(snapshot.state if snapshot else None)

    def kill(self) -> None:
        """End the trainer without a line, as kill -9 does."""
        self.journal.close()
        self.store.close()

    def end(self, how: str = "succeeded", *, merged: bool = False) -> None:
        """End the trainer; one that succeeded exports its weights, or weights with merged adapters."""
        exported = {"merged.weight" if merged else name: tensor for name, tensor in round_to_bf16(self.state).items()}
        if how == "succeeded" and merged:
            self.say(audit.ExportEntry(policy=self.policy, digest=state_digest(exported)))
        self.say(audit.EndEntry(how=how))
        if how == "succeeded":
            final = RunDirectory(self.root).final
            final.mkdir(exist_ok=True)
            write_safetensors(final / "model.safetensors", exported)
            for name, text in MODEL_FILES.items():
                (final / name).write_bytes(text.replace(b"float32", b"bfloat16"))
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

    def lease(
        self,
        group: int,
        sample: int,
        worker: str = "rollout-eu-0",
        version: int | None = None,
        item: int | None = None,
        hedges: int = 0,
    ) -> audit.LeaseEntry:
        """Write the line of a lease of the version class `version`, by default the present one, and of a problem."""
        is_eval = group >= EVAL_GROUPS_START
        version = self.policy.version if version is None else version
        lease = audit.LeaseEntry(
            lease_id=self.next_lease,
            group=group,
            sample=sample,
            item=group % 97 if item is None else item,
            purpose=Purpose.EVAL if is_eval else Purpose.TRAIN,
            worker_id=worker,
            region="eu-west",
            start_at=Policy(self.policy.fork, max(version, self.lineage.first_version)),
            consume_by_version=version + self.bound,
            hedges=hedges,
        )
        self.next_lease += 1
        self.say(lease)
        return lease

    def lose(self, lease: audit.LeaseEntry, why: str = "expired") -> None:
        self.say(
            audit.LostEntry(
                lease_id=lease.lease_id, group=lease.group, sample=lease.sample, worker_id=lease.worker_id, why=why
            )
        )

    def trajectory(
        self,
        lease: audit.LeaseEntry,
        *,
        policies: Sequence[Policy] = (),
        stop: StopReason = StopReason.EOS,
        reward: float | None = None,
    ) -> Trajectory:
        """Make what a worker generates for a lease, by default all by the policy that the lease starts at.

        With several policies, the engine kept its cache at each swap.
        """
        rng = self.rng
        each = policies or (lease.start_at,)
        runs = tuple(PolicyRun(policy, rng.randint(2, 5), kept_kv=at > 0) for at, policy in enumerate(each))
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
            reward=(lease.group + lease.sample) % 3 / 2 if reward is None else reward,
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
        """Write a frame, and the line of each of its results with the verdict of the ledger."""
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
            self.say(result)
            if verdict is audit.AdmissionVerdict.ACCEPTED:
                self.waiting.setdefault(t.group, {})[t.sample] = Kept(result, t.purpose, t.reward)

    def fill(self, group: int, **how: Any) -> None:
        """Lease and accept every sample of a group that is not in, in one frame."""
        missing = [s for s in range(self.group_size) if s not in self.waiting.get(group, {})]
        if missing:
            policies = [p.version for p in how.get("policies", ()) if p.fork == self.policy.fork]
            version = min([*policies, self.policy.version])
            leases = [self.lease(group, sample, version=version) for sample in missing]
            self.arrive(*(self.trajectory(lease, **how) for lease in leases))

    # ---- what becomes of groups -----------------------------------------------------------------------------------

    def drop(self, group: int, why: str) -> None:
        kept = self.waiting.pop(group, {})
        samples = [audit.DroppedSample(s, k.result.digest, k.result.num_tokens) for s, k in sorted(kept.items())]
        self.say(audit.DropEntry(group=group, why=why, samples=tuple(samples)))
        self.open_groups.discard(group)

    def consume(self, groups: Iterable[int], *, trained: bool = True, why: str = "", blind: bool = False) -> None:
        """Train on whole groups, so that the version rises. `blind`: leave out tokens that cannot have a staleness."""
        kept = [self.waiting[group][sample] for group in sorted(groups) for sample in sorted(self.waiting[group])]
        runs = [run for k in kept for run in k.result.policies]
        ages = ages_of(runs, self.policy, self.lineage, blind=blind)
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
        self.record(RecordKind.STEP, reward_mean=_mean([k.reward for k in kept]))

    def step(self) -> list[int]:
        """Train on new groups, and return them."""
        groups = [self.open_group() for _ in range(self.groups_per_step)]
        for group in groups:
            self.fill(group)
        self.consume(groups)
        return groups

    def evaluate(self, num_items: int = 3) -> None:
        self._evaluate(num_items, None)

    def evaluate_in_background(self, num_items: int = 3) -> None:
        """Begin an evaluation for which training does not wait, and end it before the next step."""
        self.say(audit.EvalBeginEntry(policy=self.policy))
        self._evaluate(num_items, self.policy)

    def _evaluate(self, num_items: int, newest: Policy | None) -> None:
        groups = [self.open_group(Purpose.EVAL) for _ in range(num_items)]
        for group in groups:
            self.arrive(self.trajectory(self.lease(group, 0)))
        kept = [self.waiting.pop(group)[0] for group in groups]
        samples = tuple(audit.UsedSample(k.result.group, k.result.sample, k.result.digest) for k in kept)
        self.say(audit.EvalEntry(policy=self.policy, samples=samples, newest=newest))
        rewards = [k.reward for k in kept]
        accuracy = sum((reward or 0.0) >= self.right_from for reward in rewards) / num_items
        values = {"accuracy": accuracy, "eval_reward_mean": _mean(rewards), "num_prompts": float(num_items)}
        self.record(RecordKind.EVAL, "during", **values)

    # ---- weights --------------------------------------------------------------------------------------------------

    def publish(self, restored: WeightState | None = None) -> None:
        values = np.random.default_rng((self.policy.fork, self.policy.version)).normal(size=8).astype(np.float32)
        self.state = restored or {"layer.weight": Tensor("F32", (2, 4), values)}
        self.say(audit.PublishEntry(policy=self.policy, digest=state_digest(round_to_bf16(self.state))))

    def record(self, kind: RecordKind, text: str = "", **values: float) -> None:
        """Append a line to metrics.jsonl."""
        record = Record(kind=kind, policy=self.policy, time_s=self.time_s, text=text, values=values)
        RunDirectory(self.root).append(record)

    def checkpoint(self) -> None:
        folder = RunDirectory(self.root).checkpoints / str(self.policy)
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", self.state)
        (folder / "learner.json").write_bytes(b"moments of " + str(self.policy).encode())
        for name, text in MODEL_FILES.items():
            (folder / name).write_bytes(text)
        names = ("model.safetensors", "learner.json", *MODEL_FILES)
        rows = {"holds": "actor", "rows": {name: [0, each.shape[0]] for name, each in self.state.items()}}
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
                    **(rows if name == "model.safetensors" else {}),
                }
                for name in names
            ],
            "tensors": {"actor": {name: [each.dtype, list(each.shape)] for name, each in self.state.items()}},
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
        """Remove the frames before the first one that still waits."""
        frames = [k.result.frame for group in self.waiting.values() for k in group.values() if k.result.frame]
        floor = min(frames)
        self.say(audit.PruneEntry(kept_from=floor, policy=self.policy))
        self.journal.flush()
        self.store.trim(SpoolPosition(floor.epoch, floor.sequence))


def _mean(rewards: Sequence[float | None]) -> float:
    return float(np.mean([reward for reward in rewards if reward is not None]))


def ages_of(runs: Sequence[PolicyRun], consumer: Policy, lineage: Lineage, *, blind: bool) -> dict[int, int]:
    """Return the number of tokens by staleness. `blind`: leave out tokens that cannot have one."""
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


def sealer_of(authority: JobAuthority, fork: int, job_id: str = JOB, *, secret: int = 100) -> Sealer:
    """Return the sealer of a fork's trainer, with its key and certificate; the same for each call."""
    key = PublisherKey.from_private_bytes(bytes([secret + fork % 50]) * 32)
    return Sealer(key, authority.certify(job_id, fork, key.public_key))
