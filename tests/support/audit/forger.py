"""Somebody who changes a finished run so that it looks right.

A forger knows the schema and recomputes everything that follows from a change: numbers, hash chain, roots, claimed
ages, manifests and their hashes. It cannot sign with the keys of the run's trainers, which are gone.
"""

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from blake3 import blake3

from periplus.audit import records as audit
from periplus.audit.run_reader import frame_trajectories
from periplus.audit.seals import SEALED, Sealer
from periplus.codec import trajectory as codec
from periplus.codec.frame import CodecId, Frame, pack
from periplus.job.run_directory import RunDirectory
from periplus.publication import JobAuthority
from periplus.spool.database import DATABASE, key_of
from periplus.spool.format import Durability
from periplus.spool.format import Position as SpoolPosition
from periplus.spool.reader import SpoolReader
from periplus.spool.spool import Spool
from periplus.values.policy import Lineage, Policy
from periplus.values.record import RecordKind
from periplus.values.trajectory import PolicyRun, Trajectory, content_digest
from tests.support.audit.run import ages_of, sealer_of

FORGER = JobAuthority.from_private_bytes(bytes(range(1, 33)))
"""The authority of a forger, who has no key of this run."""

_NO_SEAL = audit.SealEntry(key=bytes(32), certificate=bytes(64), signature=bytes(64))
"""Stands in the place of a seal that is signed later."""


@dataclass(slots=True)
class Entry:
    """A line to be written again. `was` is its number in the journal that was read, -1 for a new line."""

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
        """Return the places of the records for which `fits` holds."""
        return [i for i, entry in enumerate(self.entries) if fits(entry.record)]

    def edit(self, place: int, /, **changes: Any) -> None:
        self.entries[place].record = replace(self.entries[place].record, **changes)

    def insert(self, index: int, record: audit.Entry) -> None:
        self.entries.insert(index, Entry(self.entries[index - 1].time_s, record, -1))

    def write_unsealed(self) -> None:
        """Write the edited lines, with chain, roots and positions as they were: what somebody careless leaves."""
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
        """Write journal and manifests, and return the journal's text.

        With an authority, its trainers sign the seals; without one, seals stay as they were.
        """
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
        """Place one seal after each line that needs one, and after no other line but the first of a fork."""
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
        """Write the frames again with changed trajectories, each at its old position."""
        folder = self.root / "trajectories"
        kept = list(SpoolReader.open(folder).records())
        shutil.rmtree(folder)
        for _, records in groupby(kept, key=lambda record: record.position.epoch):
            store = Spool.open(folder, durability=Durability.PROCESS, max_bytes=1 << 30)
            for record in records:
                changed = [change(t) for t in frame_trajectories(record.data)]
                store.append(pack(Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, codec.encode(changed))))
            store.close()

    def rewrite_everything(self, change: Callable[[Trajectory], Trajectory]) -> None:
        """Change frames and every digest of them, which leaves no trace on the trainer's own disk."""
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
        self._quote_anew()

    def _quote_anew(self) -> None:
        """Write the figures of metrics.jsonl anew, as they are by the frames."""
        frames = [frame_trajectories(record.data) for record in SpoolReader.open(self.root / "trajectories").records()]
        rewards = {content_digest(t): t.reward or 0.0 for frame in frames for t in frame}
        used: dict[tuple[RecordKind, Policy], list[float]] = {}
        for record in (entry.record for entry in self.entries):
            if isinstance(record, audit.ConsumeEntry):
                used[RecordKind.STEP, record.policy.next()] = [rewards[u.digest] for u in record.samples]
            elif isinstance(record, audit.EvalEntry):
                used[RecordKind.EVAL, record.policy] = [rewards[u.digest] for u in record.samples]
        run = RunDirectory(self.root)
        records = run.records()
        run.metrics.unlink()
        for quoted in records:
            found = used[quoted.kind, quoted.policy]
            mean, accuracy = fmean(found), fmean(reward == 1.0 for reward in found)
            new = {"reward_mean": mean, "eval_reward_mean": mean, "accuracy": accuracy}
            values = {name: new.get(name, value) for name, value in quoted.values.items()}
            run.append(replace(quoted, values=values))

    def remove_frame(self, frame: audit.FrameId) -> None:
        """Remove a frame from the store."""
        key = key_of(SpoolPosition(frame.epoch, frame.sequence))
        path = self.root / "trajectories" / DATABASE
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("DELETE FROM records WHERE key = ?", (key,))


def _restated(
    record: audit.ConsumeEntry, lineage: Lineage, policies: dict[tuple[int, int, bytes], tuple[PolicyRun, ...]]
) -> audit.ConsumeEntry:
    runs = [run for u in record.samples for run in policies.get((u.group, u.sample, u.digest), ())]
    ages = ages_of(runs, record.policy, lineage, blind=True)
    root = audit.batch_root([used.digest for used in record.samples])
    return replace(record, root=root, staleness_tokens=ages)
