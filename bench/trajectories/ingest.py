"""How many tokens a second a trainer takes in for good: one process sends, one receives, over gRPC on loopback.

The sender is a home gateway (the real servicer) that relays what a remote region's gateway would send: its frames are
prepared, since in a fleet hundreds of workers encode them. The receiver is the trainer's own intake: link, decoder,
validation, digests, the store with an fsync, the ledger, the audit with an fsync, and the acknowledgement. The clock
runs in the sender, from its first frame to the acknowledgement of its last one; what is acknowledged survives a power
cut. The batch is one step of all groups, so that no training is timed.
"""

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from periplus.audit.journal import AuditJournal, read_lines
from periplus.codec.trajectory import encode
from periplus.net import rpc
from periplus.net.convert import certificate_to_pb
from periplus.pb.v1 import common_pb2, control_pb2, gateway_pb2, gateway_pb2_grpc
from periplus.publication import JobAuthority, PublisherKey
from periplus.spool.format import Durability
from periplus.spool.spool import Spool
from periplus.values.policy import Lineage, Policy
from periplus.values.trajectory import PolicyRun, Trajectory, TrajectoryLimits
from region_agent.gateway.convert import from_below, to_below
from region_agent.gateway.frames import FrameSpool
from region_agent.gateway.hubs import Hubs
from region_agent.gateway.service import GatewayService
from region_agent.gateway.traffic import Traffic
from region_agent.weights.weight_cache import WeightCache
from trainer.disk_wait import DiskWait
from trainer.intake.frame_retention import Retention
from trainer.intake.frames import FrameIntake
from trainer.intake.gateway import GatewayLink
from trainer.intake.ledger_driver import LedgerDriver
from trainer.intake.ledger_service import LedgerService
from trainer.intake.write_ahead import WriteAheadJournal
from trainer.ledger.machine import Ledger
from trainer.ledger.values import LedgerLimits

JOB = "ingest"
WORKER, REGION = "eu-west/rollout-3", "eu-west"
START = Policy(0, 0)


def frames_of(groups: Sequence[Sequence[Trajectory]], num_frames: int) -> list[bytes]:
    """Payloads: the groups in turn, each time as another group of the first version, under the leases that the ledger
    will grant: numbered from 1, group by group."""
    payloads = []
    for place in range(num_frames):
        renamed = [
            replace(
                t,
                lease_id=1 + place * len(groups[0]) + sample,
                group=place,
                sample=sample,
                item=0,
                worker_id=WORKER,
                policies=(PolicyRun(START, len(t.mask)),),
            )
            for sample, t in enumerate(groups[place % len(groups)])
        ]
        payloads.append(encode(renamed))
    return payloads


def measure(groups: Sequence[Sequence[Trajectory]], num_frames: int, limits: TrajectoryLimits) -> dict[str, float]:
    """Seconds and bytes of one run; checks that every sample was accepted, kept and written down."""
    payloads = frames_of(groups, num_frames)
    num_tokens = sum(sum(len(t.mask) for t in groups[place % len(groups)]) for place in range(num_frames))
    parent, child = multiprocessing.get_context("spawn").Pipe()
    with tempfile.TemporaryDirectory(prefix="periplus-ingest-") as folder:
        sender = multiprocessing.get_context("spawn").Process(target=_send, args=(child, payloads, folder))
        sender.start()
        try:
            receiving_cpu_s = asyncio.run(_receive(parent, Path(folder), num_frames, len(groups[0]), limits))
            seconds = parent.recv()
        finally:
            sender.join(timeout=10)
            sender.kill()
        kept = _check(Path(folder), num_frames, num_frames * len(groups[0]))
    return {
        "ingest_tokens_per_s": num_tokens / seconds,
        "frames_per_s": num_frames / seconds,
        "stored_mbytes_per_s": sum(map(len, payloads)) / seconds / 1e6,
        "receiver_cpu_s_per_s": receiving_cpu_s / seconds,
        "tokens": float(num_tokens),
        "stored_mbytes": kept / 1e6,
    }


def _check(folder: Path, num_frames: int, num_samples: int) -> int:
    accepted = sum(b'"verdict":"accepted"' in line for line in read_lines(folder / "audit.jsonl"))
    store = Spool.open(folder / "store", durability=Durability.MACHINE, max_bytes=1 << 50)
    with_frames, num_bytes = store.num_records, store.num_bytes
    store.close()
    assert accepted == num_samples, f"{accepted} of {num_samples} samples were accepted"
    assert with_frames == num_frames, f"{with_frames} of {num_frames} frames are in the store"
    return num_bytes


# ---- the trainer -----------------------------------------------------------------------------------------------------


async def _receive(pipe: Connection, folder: Path, num_groups: int, group_size: int, limits: TrajectoryLimits) -> float:
    address = await asyncio.to_thread(pipe.recv)
    ledger_limits = LedgerLimits(
        groups_per_step=num_groups,
        group_size=group_size,
        bound=0,
        steps=1,
        lease_timeout_s=3600.0,
        max_hold_s=0.0,
        max_sample_tokens=limits.max_completion_tokens,
        intake_tokens=num_groups * group_size * limits.max_completion_tokens,
    )
    link = GatewayLink(address, JOB, 0, PublisherKey.generate().public_key, "")
    disk = DiskWait(asyncio.Event(), lambda phase: None)
    store = Spool.open(folder / "store", durability=Durability.MACHINE, max_bytes=1 << 50)
    with AuditJournal.open(folder / "audit.jsonl") as journal:
        driver = LedgerDriver(
            Ledger(ledger_limits, Lineage(0), START, lambda _: 0),
            Retention(1 << 50),
            bundle_digest=b"",
            home_region="home",
        )
        lines = WriteAheadJournal(journal, link.send, disk, time.time)
        intake = FrameIntake(store, limits, disk)

        async def wrong_groups(_: object) -> frozenset[int]:
            return frozenset()

        ledger_service = LedgerService(
            driver, intake, lines, link.send, syncs=True, now=time.monotonic, wrong_groups=wrong_groups
        )
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(link.run(ledger_service.on_message)), tasks.create_task(ledger_service.run())]
            started_s = time.process_time()
            batch = await ledger_service.batch(asyncio.Event())
            assert batch is not None
            await asyncio.to_thread(pipe.poll, None)  # the sender has its acknowledgements
            used_s = time.process_time() - started_s
            for task in running:
                task.cancel()
    store.close()
    return used_s


# ---- the gateway -----------------------------------------------------------------------------------------------------


def _send(pipe: Connection, payloads: Sequence[bytes], folder: str) -> None:
    asyncio.run(_serve(pipe, payloads, Path(folder)))


async def _serve(pipe: Connection, payloads: Sequence[bytes], folder: Path) -> None:
    hubs, server = Hubs("home"), rpc.server()
    address = rpc.bind(server, "127.0.0.1:0")
    spool = FrameSpool.open(folder / "gateway", durability=Durability.PROCESS, max_bytes=1 << 20)
    authority = JobAuthority.generate()
    cache = WeightCache.open(JOB, authority.public_key, folder / "weights", chain_versions=8)
    hub = hubs.open(JOB, spool, cache, secret="")

    async def certify(job_id: str, fork: int, public_key: bytes) -> control_pb2.CertificateAnswer:
        certificate = certificate_to_pb(authority.certify(job_id, fork, public_key))
        return control_pb2.CertificateAnswer(job_id=job_id, fork=fork, certificate=certificate)

    service = GatewayService(hubs, Traffic(), lambda _: None, certify)
    gateway_pb2_grpc.add_GatewayServicer_to_server(service, server)
    await server.start()
    pipe.send(address)
    while hub.trainer_slot.trainer is None:  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(0.01)
    stream = hub.open_stream(REGION)
    hello = gateway_pb2.RolloutUp(worker_id=WORKER, hello=gateway_pb2.WorkerHello(job_id=JOB, region=REGION))
    room = gateway_pb2.RolloutUp(worker_id=WORKER, capacity=gateway_pb2.Capacity(num_samples=1 << 20))
    for message in (hello, room):
        await hub.take_up(stream, from_below(message, is_local=False))
    messages = [_message(sequence, payload) for sequence, payload in enumerate(payloads)]
    num_leases = 0
    while num_leases < len(payloads):
        num_leases += sum(len(down.leases.leases) for down in to_below(await stream.next_down()))

    async def send() -> None:
        for message in messages:
            await hub.take_up(stream, from_below(message, is_local=False))

    started_s = time.perf_counter()
    sending = asyncio.create_task(send())
    num_committed = 0
    while num_committed < len(payloads):
        num_committed += sum(len(down.committed.sequences) for down in to_below(await stream.next_down()))
    seconds = time.perf_counter() - started_s
    await sending
    pipe.send(seconds)
    await asyncio.sleep(0.2)
    await server.stop(None)


def _message(sequence: int, payload: bytes) -> gateway_pb2.RolloutUp:
    frame = gateway_pb2.TrajectoryFrame(
        codec=common_pb2.CODEC_TRAJECTORY_COLUMNS_ZSTD, payload=payload, epoch=1, sequence=sequence, region=REGION
    )
    return gateway_pb2.RolloutUp(worker_id=WORKER, frame=frame)
