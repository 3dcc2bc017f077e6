"""Claim: `periplus job audit` takes at most 60 s for a million lines, and time and memory grow in proportion to them.

A generator plays a trainer. It writes leases, results, steps, publications, checkpoints and seals with the product's
own journal, spool, codec and digests, and keeps every sample's frame. Each run is audited in a process of its own, with
the authority's key, so that every signature is verified. The run as written must be clean, and with one edited line it
must not be. Then the cost is compared: CPU seconds of that process (`time.process_time`, so other programs of the
machine do not count), wall seconds, and peak memory.

`audit_s_per_million_lines` is the CPU time of the largest run, scaled to a million lines. `us_per_line` at each size
shows whether the cost is linear. Answers are short (32 tokens on average). With longer ones, hashing and decoding the
frames adds about 10 ns per token. The last line of output is one JSON object.
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from bench import provenance
from periplus.audit import records
from periplus.audit.findings import Code
from periplus.audit.journal import AuditJournal
from periplus.audit.run_reader import audit_run, round_to_bf16
from periplus.audit.seals import SEALED, Sealer
from periplus.codec import trajectory as codec
from periplus.codec.frame import CodecId, Frame, pack
from periplus.job.run_directory import RunDirectory
from periplus.publication import JobAuthority, PublisherKey
from periplus.spool.format import Durability
from periplus.spool.spool import Spool
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.trajectory import (
    PolicyRun,
    Purpose,
    SamplingParams,
    StopReason,
    Trajectory,
    content_digest,
    read_only,
)
from periplus.values.weight_state import Tensor, WeightState, write_safetensors

MAX_S_PER_MILLION_LINES = 60.0
"""Target: most CPU seconds per million lines."""
JOB = "bench-1"
BOUND = 1
"""Staleness bound of the generated run, in versions."""
ENCODE_LEVEL = 1
"""zstandard level of the frames: their content is the same at every level, and this one is written fastest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    lines: tuple[int, ...]
    group_size: int = 8
    groups_per_step: int = 32
    mean_tokens: int = 32
    steps_per_checkpoint: int = 20
    kept_checkpoints: int = 5
    seed: int = 0


FULL = Config(lines=(125_000, 250_000, 500_000, 1_000_000))
QUICK = Config(lines=(5_000, 10_000, 20_000))


# ---- a run -----------------------------------------------------------------------------------------------------------


class Trainer:
    """Writer of a run directory. Groups are sampled one step ahead, so staleness is one version."""

    def __init__(self, root: Path, config: Config, authority: JobAuthority) -> None:
        self._config, self._run = config, RunDirectory(root)
        self._run.create()
        self._rng = np.random.default_rng(config.seed)
        self._time_s = 1.7e9
        self._policy, self._next_group, self._next_lease = Policy(0, 0), 0, 1
        self._waiting: list[list[records.UsedSample]] = []
        self._ages: list[tuple[int, int]] = []
        self._root = records.START_OF_BATCHES
        self._kept: list[Path] = []
        self._parent: tuple[Policy, bytes] | None = None
        job = {
            "staleness": BOUND,
            "seed": config.seed,
            "train": {"groups_per_step": config.groups_per_step},
            "algorithm": {"name": "grpo", "group_size": config.group_size},
        }
        self._run.config.write_text(json.dumps(job))
        self._store = Spool.open(self._run.trajectories, durability=Durability.PROCESS, max_bytes=1 << 40)
        self._journal = AuditJournal.open(self._run.audit)
        self._say(
            records.OpenEntry(
                job_id=JOB,
                fork=0,
                parent=None,
                manifest=None,
                resumed_at=None,
                bound=BOUND,
                group_size=config.group_size,
                groups_per_step=config.groups_per_step,
                seed=config.seed,
                algorithm="grpo",
                settings=blake3(self._run.config.read_bytes()).digest(),
                problems=bytes(32),
            )
        )
        key = PublisherKey.generate()
        self._sealer = Sealer(key, authority.certify(JOB, 0, key.public_key))
        self._say(self._sealer.seal(*self._journal.position))

    def write(self, num_lines: int) -> None:
        """Write a whole run with at least `num_lines` lines in its journal."""
        self._publish()
        while self._journal.position.n < num_lines:
            while len(self._waiting) < 2 * self._config.groups_per_step:
                self._group()
            self._step()
            if self._policy.version % self._config.steps_per_checkpoint == 0:
                self._checkpoint()
        for group in self._waiting:
            dropped = [records.DroppedSample(used.sample, used.digest, self._ages.pop(0)[1]) for used in group]
            self._say(records.DropEntry(group=group[0].group, why="overdue", samples=tuple(dropped)))
        self._waiting.clear()
        self._checkpoint()
        self._run.final.mkdir()
        write_safetensors(self._run.final / "model.safetensors", round_to_bf16(self._state))
        self._say(records.EndEntry(how="succeeded"))
        self._journal.close()
        self._store.close()

    def _say(self, record: records.Entry) -> None:
        self._time_s += 0.001
        self._journal.append(record, self._time_s, self._sealer.seal if isinstance(record, SEALED) else None)

    def _group(self) -> None:
        """Lease the samples of a group, store them in one frame, and accept them."""
        config, group = self._config, self._next_group
        leases = [
            records.LeaseEntry(
                lease_id=self._next_lease + sample,
                group=group,
                sample=sample,
                item=group % 5000,
                purpose=Purpose.TRAIN,
                worker_id=f"{JOB}/eu-west/rollout-{group % 8}",
                region="eu-west",
                start_at=self._policy,
                consume_by_version=self._policy.version + BOUND,
            )
            for sample in range(config.group_size)
        ]
        for lease in leases:
            self._say(lease)
        found = [self._trajectory(lease) for lease in leases]
        data = pack(Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, codec.encode(found, ENCODE_LEVEL)))
        position = self._store.append(data)
        self._waiting.append([])
        for index, (lease, t) in enumerate(zip(leases, found, strict=True)):
            digest = content_digest(t)
            self._say(
                records.ResultEntry(
                    verdict=records.AdmissionVerdict.ACCEPTED,
                    why="",
                    lease_id=lease.lease_id,
                    group=group,
                    sample=lease.sample,
                    worker_id=lease.worker_id,
                    region="eu-west",
                    digest=digest,
                    num_tokens=len(t.completion_ids),
                    policies=t.policies,
                    stop_reason=t.stop_reason,
                    frame=records.FrameId(position.epoch, position.sequence),
                    index=index,
                )
            )
            self._waiting[-1].append(records.UsedSample(group, lease.sample, digest))
            self._ages.append((self._policy.version, len(t.completion_ids)))
        self._next_lease += config.group_size
        self._next_group += 1

    def _trajectory(self, lease: records.LeaseEntry) -> Trajectory:
        num_tokens = int(self._rng.integers(1, 2 * self._config.mean_tokens))
        return Trajectory(
            lease_id=lease.lease_id,
            group=lease.group,
            sample=lease.sample,
            item=lease.item,
            purpose=lease.purpose,
            prompt_ids=read_only([1, 2, lease.item], np.int32),
            completion_ids=read_only(self._rng.integers(0, 5000, num_tokens), np.int32),
            logprobs=read_only(-self._rng.random(num_tokens), np.float32),
            mask=read_only(np.ones(num_tokens), np.bool_),
            policies=(PolicyRun(lease.start_at, num_tokens),),
            reward=1.0,
            stop_reason=StopReason.EOS,
            sampling=SamplingParams(temperature=1.0),
            worker_id=lease.worker_id,
            generation_s=0.5,
        )

    def _step(self) -> None:
        batch = self._waiting[: self._config.groups_per_step]
        del self._waiting[: self._config.groups_per_step]
        samples = tuple(used for group in batch for used in group)
        of_batch, self._ages = self._ages[: len(samples)], self._ages[len(samples) :]
        ages: dict[int, int] = {}
        for version, num_tokens in of_batch:
            age = self._policy.version - version
            ages[age] = ages.get(age, 0) + num_tokens
        root = records.batch_root([used.digest for used in samples])
        self._say(
            records.ConsumeEntry(
                policy=self._policy, trained=True, why="", samples=samples, root=root, staleness_tokens=ages
            )
        )
        self._root = records.next_batches_root(self._root, root)
        self._policy = self._policy.next()
        self._publish()
        step = Record(kind=RecordKind.STEP, policy=self._policy, time_s=self._time_s, values={"reward_mean": 1.0})
        self._run.append(step)

    def _publish(self) -> None:
        values = self._rng.normal(size=64).astype(np.float32)
        self._state: WeightState = {"layer.weight": Tensor("F32", (8, 8), values)}
        self._say(records.PublishEntry(policy=self._policy, digest=state_digest(round_to_bf16(self._state))))

    def _checkpoint(self) -> None:
        if self._parent is not None and self._parent[0] == self._policy:
            return
        folder = self._run.checkpoints / str(self._policy)
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", self._state)
        position, part = self._journal.position, folder / "model.safetensors"
        opened = sorted(group[0].group for group in self._waiting)
        manifest = {
            "schema": "periplus.checkpoint/1",
            "job_id": JOB,
            "fork": 0,
            "version": self._policy.version,
            "parts": [
                {
                    "name": part.name,
                    "bytes": part.stat().st_size,
                    "blake3": blake3(part.read_bytes()).hexdigest(),
                    "holds": "actor",
                    "rows": {name: [0, each.shape[0]] for name, each in self._state.items()},
                }
            ],
            "tensors": {"actor": {name: [each.dtype, list(each.shape)] for name, each in self._state.items()}},
            "parents": [],
            "progress": {"steps": float(self._policy.version)},
            "audit": {"n": position.n, "prev": position.prev.hex()},
            "weights": state_digest(round_to_bf16(self._state)).hex(),
            "parent": self._parent and [0, self._parent[0].version],
            "parent_manifest": self._parent and self._parent[1].hex(),
            "next_group": self._next_group,
            "open_groups": opened,
            "batches_root": self._root.hex(),
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
        digest = blake3((folder / "manifest.json").read_bytes()).digest()
        self._say(records.CheckpointEntry(policy=self._policy, manifest=digest, covers=position.n))
        self._parent = self._policy, digest
        self._kept.append(folder)
        for old in self._kept[: -self._config.kept_checkpoints]:
            for file in sorted(old.iterdir()):
                file.unlink()
            old.rmdir()
        del self._kept[: -self._config.kept_checkpoints]


def edit_one_line(journal: Path) -> None:
    """Add one token to the count of a result line in the middle of the journal."""
    lines = journal.read_bytes().splitlines(keepends=True)
    index = next(i for i in range(len(lines) // 2, len(lines)) if b'"kind":"result"' in lines[i])
    data = json.loads(lines[index])
    old = f'"tokens":{data["tokens"]},'.encode()
    lines[index] = lines[index].replace(old, f'"tokens":{data["tokens"] + 1},'.encode())
    journal.write_bytes(b"".join(lines))


# ---- its audit -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Result and cost of one audit. `peak_mib` is the peak memory of its whole process."""

    codes: tuple[str, ...]
    trained: int
    trained_by_frame: int
    steps: int
    signed_lines: int
    num_lines: int
    cpu_s: float
    wall_s: float
    peak_mib: float


def _audit(root: str, authority_key: bytes) -> Taken:
    begun_cpu_s, begun_s = time.process_time(), time.monotonic()
    report = audit_run(Path(root), (), lambda *_: None, [authority_key])
    cpu_s, wall_s = time.process_time() - begun_cpu_s, time.monotonic() - begun_s
    assert report.surviving is not None
    return Taken(
        codes=tuple(sorted(report.counts)),
        trained=report.surviving.trained,
        trained_by_frame=report.surviving.trained_by_frame,
        steps=report.figures.steps,
        signed_lines=report.seals.num_lines,
        num_lines=report.num_lines,
        cpu_s=cpu_s,
        wall_s=wall_s,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def audited(root: Path, authority_key: bytes) -> Taken:
    """Audit a run in a process of its own, so that peak memory is measured for this audit alone."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_audit, (str(root), authority_key))


def measure(config: Config, folder: Path) -> list[dict[str, Any]]:
    """Return a row of figures for each size. Raises: AssertionError if an audit's verdict is wrong."""
    authority, rows = JobAuthority.generate(), []
    for num_lines in config.lines:
        root = folder / str(num_lines)
        Trainer(root, config, authority).write(num_lines)
        honest = audited(root, authority.public_key)
        assert not honest.codes, f"a clean run is said to have {honest.codes}"
        assert honest.trained == honest.trained_by_frame > 0, "every sample's frame is kept"
        assert honest.steps > 0, "mean rewards are recomputed"
        assert honest.signed_lines == honest.num_lines, "the last line is a seal"
        edit_one_line(root / "audit.jsonl")
        edited = audited(root, authority.public_key)
        assert {Code.CHAIN_BROKEN, Code.FRAME_CONTRADICTS} <= set(edited.codes), f"one edit: {edited.codes}"
        rows.append(
            {
                "lines": honest.num_lines,
                "samples": honest.trained,
                "journal_mib": (root / "audit.jsonl").stat().st_size / (1 << 20),
                "cpu_s": honest.cpu_s,
                "wall_s": honest.wall_s,
                "us_per_line": honest.cpu_s / honest.num_lines * 1e6,
                "peak_mib": honest.peak_mib,
                "kib_per_line": honest.peak_mib * 1024 / honest.num_lines,
                "edited_cpu_s": edited.cpu_s,
                "edited_peak_mib": edited.peak_mib,
            }
        )
        print(json.dumps(_rounded(rows[-1])), file=sys.stderr, flush=True)
    return rows


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="runs of some thousand lines, within a minute")
    arguments = parser.parse_args()
    config = QUICK if arguments.quick else FULL
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="periplus-audit-") as folder:
        rows = measure(config, Path(folder))
    per_line = rows[-1]["us_per_line"]
    reach = [provenance.reached("audit_s_per_million_lines", per_line, "s", "<=", MAX_S_PER_MILLION_LINES)]
    print(
        json.dumps(
            {
                "bench": "audit",
                "commit": provenance.commit(),
                "machine": provenance.machine(load, numpy=np.__version__),
                "config": asdict(config),
                "results": {"sizes": [_rounded(row) for row in rows]},
                "reach": [_rounded(row) for row in reach],
            }
        )
    )
    return 0 if all(row["ok"] for row in reach) else 1


if __name__ == "__main__":
    sys.exit(main())
