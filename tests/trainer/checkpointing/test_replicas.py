"""Replicas: what is copied, when a copy counts, and what is fetched from it."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from periplus.errors import NotFound, Unreachable
from periplus.job.run_directory import RunDirectory
from periplus.process.backoff import Backoff
from periplus.spool.format import Durability, Position
from periplus.spool.spool import Spool
from periplus.values.policy import Policy
from trainer.checkpointing import replicas
from trainer.checkpointing.manifest import MANIFEST, Manifest, read_manifest
from trainer.checkpointing.replicas import Replicator, fetch, frames_of_replica

JOB = "j"


class Scene:
    """A run's directory with frames, and a replicator that copies its checkpoints to a directory."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDirectory(folder / "runs" / JOB)
        self.run.create()
        self.run.config.write_text("name: j\n")
        self.run.metrics.write_text("{}\n")
        self.run.audit.write_text("{}\n")
        self.store = Spool.open(self.run.trajectories, durability=Durability.PROCESS, max_bytes=1 << 30)
        self.frames = [self.store.append(b"frame %d" % i) for i in range(6)]
        self.target = folder / "replicas"
        self.told: list[tuple[Policy, str, str]] = []
        self.replicator = Replicator(f"file://{self.target}", JOB, self.run, self.store, self.tell)
        self.news = asyncio.Event()

    def tell(self, policy: Policy, url: str, why: str) -> None:
        self.told.append((policy, url, why))
        self.news.set()

    def checkpoint(self, version: int, fork: int = 0) -> Manifest:
        folder = self.run.checkpoints / f"{fork}.{version}"
        folder.mkdir()
        (folder / "learner.json").write_text("{}")
        (folder / "weights").write_bytes(bytes([version]) * 1000)
        manifest = {
            "schema": "periplus.checkpoint/1",
            "job_id": JOB,
            "fork": fork,
            "version": version,
            "parents": [],
            "audit": {"n": version, "prev": ""},
            "next_group": 0,
            "open_groups": [],
            "batches_root": "",
            "problems": [],
            "progress": {},
            "tensors": {"actor": {"w": ["F32", [250]]}},
            "parts": [
                {"name": "learner.json", "blake3": ""},
                {"name": "weights", "blake3": "", "holds": "actor", "rows": {"w": [0, 250]}},
            ],
        }
        (folder / MANIFEST).write_text(json.dumps(manifest))
        return read_manifest(folder / MANIFEST)

    async def replicate(self, *versions: int, fork: int = 0, first_frame: Position | None = None) -> None:
        """Take these checkpoints, and wait until the last one is told of."""
        for version in versions:
            await self.replicator.take(self.checkpoint(version, fork), first_frame)
        async with self.running():
            await self.is_told(Policy(fork, versions[-1]))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.timeout(30.0):
            running = asyncio.create_task(self.replicator.run())
            yield
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def is_told(self, policy: Policy, *, done: bool = True) -> None:
        """Wait for the word that a replica is complete, or else that it failed."""
        while not any(told[0] == policy and bool(told[1]) == done for told in self.told):
            self.news.clear()
            await self.news.wait()

    def url(self, version: int, fork: int = 0) -> str:
        return f"file://{self.target}/{JOB}/{fork}.{version}"

    def names(self) -> list[str]:
        return sorted(path.name for path in (self.target / JOB).iterdir())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    it = Scene(tmp_path)
    yield it
    it.store.close()


def elsewhere(folder: Path) -> RunDirectory:
    run = RunDirectory(folder / "elsewhere" / JOB)
    run.create()
    return run


def test_what_is_fetched_is_a_run_as_a_killed_trainer_would_have_left_it(scene: Scene, tmp_path: Path) -> None:
    asyncio.run(scene.replicate(5, first_frame=scene.frames[4]))
    assert scene.told == [(Policy(0, 5), scene.url(5), "")]
    run = elsewhere(tmp_path)
    fetch(scene.url(5), run)
    for name in ("config.yaml", "metrics.jsonl", "audit.jsonl", "checkpoints/0.5/weights"):
        assert (run.root / name).read_bytes() == (scene.run.root / name).read_bytes()
    assert frames_of_replica(run) == (Policy(0, 5), scene.frames[4])
    store = Spool.open(run.trajectories, durability=Durability.MACHINE, max_bytes=1 << 30)
    assert [record.position for record in store.records()] == scene.frames[4:]
    assert store.append(b"more") > scene.frames[-1]
    store.close()
    assert not (scene.run.root / replicas.ASIDE).exists()
    assert frames_of_replica(scene.run) is None


def test_a_replica_without_frames_says_so(scene: Scene, tmp_path: Path) -> None:
    asyncio.run(scene.replicate(5))
    run = elsewhere(tmp_path)
    fetch(scene.url(5), run)
    assert frames_of_replica(run) is None
    assert not run.trajectories.exists()


def test_of_checkpoints_that_wait_only_the_newest_is_copied_and_the_two_newest_stay(scene: Scene) -> None:
    async def play() -> None:
        await scene.replicate(5, 10, 15)
        assert scene.names() == ["0.15"]
        await scene.replicate(20)
        await scene.replicate(25)

    asyncio.run(play())
    assert scene.names() == ["0.20", "0.25"]


def test_a_trainer_that_was_given_up_removes_nothing_of_the_next_one(scene: Scene) -> None:
    async def play() -> None:
        for fork, version in ((1, 5), (1, 7), (0, 20), (0, 25), (0, 30)):
            await scene.replicate(version, fork=fork)

    asyncio.run(play())
    assert scene.names() == ["0.25", "0.30", "1.5", "1.7"]


def test_a_copy_without_its_manifest_is_not_fetched(scene: Scene, tmp_path: Path) -> None:
    asyncio.run(scene.replicate(5))
    (scene.target / JOB / "0.5" / "checkpoints" / "0.5" / MANIFEST).unlink()
    run = elsewhere(tmp_path)
    with pytest.raises(NotFound, match=r"0\.5 is not a complete replica"):
        fetch(scene.url(5), run)
    assert not any(run.checkpoints.iterdir())
    with pytest.raises(Unreachable, match="cannot be read"):
        fetch(scene.url(6), run)


def test_what_the_region_had_of_the_run_before_is_moved_aside(scene: Scene, tmp_path: Path) -> None:
    asyncio.run(scene.replicate(5, first_frame=scene.frames[0]))
    run = elsewhere(tmp_path)
    run.audit.write_text("of an older fork\n")
    (run.checkpoints / "0.1").mkdir()
    (run.logs / "trainer.log").write_text("log\n")
    fetch(scene.url(5), run)
    assert [path.name for path in run.checkpoints.iterdir()] == ["0.5"]
    before = run.root / "before-replica-1"
    assert (before / "audit.jsonl").read_text() == "of an older fork\n"
    assert (before / "checkpoints" / "0.1").is_dir()
    assert (run.logs / "trainer.log").read_text() == "log\n"


def test_a_target_that_fails_is_told_and_tried_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "RETRY", Backoff(first_s=0.01))
    scene.target.write_text("in the way")

    async def play() -> None:
        await scene.replicator.take(scene.checkpoint(5), None)
        async with scene.running():
            await scene.is_told(Policy(0, 5), done=False)
            scene.target.unlink()
            await scene.is_told(Policy(0, 5))

    asyncio.run(play())
    (policy, url, why), *_ = scene.told
    assert (policy, url) == (Policy(0, 5), "")
    assert "tried again in" in why
    assert scene.told[-1] == (Policy(0, 5), scene.url(5), "")


def test_a_checkpoint_that_cannot_be_set_aside_is_told_and_the_next_one_is_copied(scene: Scene) -> None:
    async def play() -> None:
        manifest = scene.checkpoint(5)
        shutil.rmtree(manifest.directory)
        await scene.replicator.take(manifest, None)
        [(policy, url, why)] = scene.told
        assert (policy, url) == (Policy(0, 5), "")
        assert why
        await scene.replicate(10)

    asyncio.run(play())
    assert scene.names() == ["0.10"]
