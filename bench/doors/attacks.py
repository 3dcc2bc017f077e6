"""Attacks on a running fleet and on the programs of a worker, each of which says whether it was refused.

Each attack is made for real and judged by what it got, not by how the refusal is worded. One that fails in another way
than it expects counts as not refused.
"""

import asyncio
import contextlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.doors import programs
from bench.doors.fleet import Doors, doors_of_a_fleet
from coordinator.client.connection import connect
from coordinator.client.submission import submission
from periplus.codec.frame import CodecId, Frame
from periplus.codec.trajectory import encode
from periplus.errors import ConfigError, Denied, PeriplusError
from periplus.net import rpc
from periplus.net.convert import keyed_frame_to_pb
from periplus.net.tokens import metadata_of_job
from periplus.pb.v1 import common_pb2, control_pb2, control_pb2_grpc, gateway_pb2, gateway_pb2_grpc
from periplus.values.digest import payload_digest
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose, SamplingParams, StopReason, Trajectory, read_only, token_ids
from periplus.values.transport_keys import FrameKey

ANSWER_S = 10.0
"""Seconds in which a door answers."""


@dataclass(frozen=True, kw_only=True)
class Prey:
    """The fleet that is attacked, and its running job."""

    doors: Doors
    job_id: str
    secret: str


async def _denied(address: str, act: Callable[[Any], Awaitable[object]]) -> bool:
    """Return whether a gateway refuses what `act` does, in which nothing may come before the refusal."""
    async with rpc.channel(address) as channel:
        try:
            async with asyncio.timeout(ANSWER_S):
                with rpc.remote_errors(address):
                    await act(gateway_pb2_grpc.GatewayStub(channel))
        except Denied:
            return True
        except TimeoutError:
            return False
    return False


async def subscribe_as_a_stranger(prey: Prey) -> bool:
    request = gateway_pb2.SubscribeRequest(job_id=prey.job_id, reader_id="thief")
    return await _denied(prey.doors.gateways[0], lambda stub: stub.Subscribe(request).read())


async def take_leases_as_a_stranger(prey: Prey) -> bool:
    async def act(stub: Any) -> None:
        call = stub.Rollout(metadata=metadata_of_job("0" * 64))
        hello = gateway_pb2.WorkerHello(job_id=prey.job_id, region="a", epoch=1)
        await call.write(gateway_pb2.RolloutUp(worker_id="thief", hello=hello))
        with contextlib.suppress(asyncio.InvalidStateError):  # it has been refused already: `read` says why
            await call.write(gateway_pb2.RolloutUp(worker_id="thief", capacity=gateway_pb2.Capacity(num_samples=64)))
        await call.read()

    return await _denied(prey.doors.gateways[0], act)


async def train_without_the_secret(prey: Prey) -> bool:
    return await _train(prey, ())


async def train_without_a_certificate(prey: Prey) -> bool:
    return await _train(prey, metadata_of_job(prey.secret))


async def _train(prey: Prey, metadata: Any) -> bool:
    async def act(stub: Any) -> None:
        call = stub.Train(metadata=metadata)
        hello = gateway_pb2.TrainerHello(job_id=prey.job_id, fork=999, public_key=os.urandom(32))
        await call.write(gateway_pb2.TrainerUp(hello=hello))
        await call.done_writing()
        while (came := await call.read()) and came.certificate.refused:
            continue

    return await _denied(_home(prey), act)


def _home(prey: Prey) -> str:
    return prey.doors.gateways[0]


async def answer_leases_with_inventions(prey: Prey) -> bool:
    """Answer leases as a worker of the job, with another prompt and a reward of 1000, and look at the training.

    It says that it has each version, with the digest that everybody reads in the publication.
    """
    metadata, sent = metadata_of_job(prey.secret), 0
    async with rpc.channel(_home(prey)) as channel:
        stub: Any = gateway_pb2_grpc.GatewayStub(channel)
        published = stub.Subscribe(gateway_pb2.SubscribeRequest(job_id=prey.job_id), metadata=metadata)
        call = stub.Rollout(metadata=metadata)
        writing = asyncio.Lock()

        async def write(message: gateway_pb2.RolloutUp) -> None:
            async with writing:
                await call.write(message)

        async def prove() -> None:
            bundle = b""
            async for record in published:
                if record.HasField("opening"):
                    opening = record.opening
                elif record.HasField("chunk") and opening.kind == gateway_pb2.PUBLICATION_KIND_BUNDLE:
                    bundle += record.chunk.data
                elif record.HasField("closing") and opening.kind == gateway_pb2.PUBLICATION_KIND_BUNDLE:
                    hello = gateway_pb2.WorkerHello(job_id=prey.job_id, region="a", epoch=1)
                    hello.bundle_digest = payload_digest(bundle)
                    await write(gateway_pb2.RolloutUp(worker_id="liar", hello=hello))
                    await write(gateway_pb2.RolloutUp(worker_id="liar", capacity=gateway_pb2.Capacity(num_samples=16)))
                elif record.HasField("closing"):
                    proof = gateway_pb2.WeightProof(policy=opening.policy, state_digest=record.closing.state_digest)
                    proof.ok = proof.engine_checked = True
                    await write(gateway_pb2.RolloutUp(worker_id="liar", proof=proof))

        proving = asyncio.create_task(prove())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                async for message in call:
                    for lease in message.leases.leases:
                        frame = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, encode([_invented(lease)]))
                        key = FrameKey(worker_id="liar", epoch=1, sequence=sent)
                        await write(keyed_frame_to_pb(key, frame, ""))
                        sent += 1
        proving.cancel()
        await asyncio.gather(proving, return_exceptions=True)
    rewards = await _rewards(prey, 5)
    print(f"{sent} inventions sent; mean rewards up to {max(rewards)}", file=sys.stderr)
    return sent > 0 and max(rewards) <= 1.0


async def _rewards(prey: Prey, number: int) -> list[float]:
    """Wait until that many more steps are done, and return the mean rewards of all steps."""
    rewards: list[float] = []
    first = (await prey.doors.remote.job(prey.job_id)).policy.version
    async for event in prey.doors.remote.watch(prey.job_id):
        if event.HasField("step") and event.step.kind == "step":
            rewards.append(event.step.values["reward_mean"])
            if event.step.policy.version >= first + number:
                break
    return rewards


def _invented(lease: gateway_pb2.Lease) -> Trajectory:
    return Trajectory(
        lease_id=lease.lease_id,
        group=lease.group,
        sample=lease.sample,
        item=lease.item,
        purpose=Purpose.TRAIN if lease.purpose == gateway_pb2.PURPOSE_TRAIN else Purpose.EVAL,
        prompt_ids=token_ids([7, 7]),
        completion_ids=token_ids([5]),
        logprobs=read_only([-0.5], np.float32),
        mask=read_only([True], np.bool_),
        policies=(PolicyRun(Policy(fork=lease.start_at.fork, version=lease.start_at.version), 1),),
        reward=1000.0,
        stop_reason=StopReason.LENGTH,
        sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=0),
        worker_id="liar",
        generation_s=0.1,
    )


async def join_as_a_region_without_the_token(prey: Prey) -> bool:
    machine = control_pb2.Machine(name="big", num_cores=64, memory_bytes=1 << 40)
    hello = control_pb2.Hello(
        region="thief",
        boot_id="b",
        gateway_address="127.0.0.1:1",
        inventory=control_pb2.Inventory(machines=[machine]),
    )
    async with rpc.channel(prey.doors.coordinator) as channel:
        stub: Any = control_pb2_grpc.CoordinatorStub(channel)
        call = stub.Session()
        try:
            with rpc.remote_errors(prey.doors.coordinator):
                await call.write(control_pb2.AgentMessage(sequence=1, hello=hello))
                await call.read()
        except Denied:
            return "thief" not in [each.name for each in (await prey.doors.remote.fleet()).regions]
    return False


async def submit_as_another_user(prey: Prey) -> bool:
    files = [each for each in prey.doors.folder.glob("state/**/*") if each.is_file()]
    readable = [each for each in files if each.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]
    async with connect(prey.doors.coordinator) as stranger:
        try:
            await stranger.submit(submission(prey.doors.job(1), "stolen"))
        except Denied:
            return bool(files) and not readable
    return False


async def _fails(prey: Prey, request: control_pb2.SubmitJobRequest) -> bool:
    """Return whether a job of the owner is refused, or fails before any process of it has run."""
    try:
        job_id = (await prey.doors.remote.submit(request)).job_id
    except PeriplusError:
        return True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            ended = await prey.doors.ended(job_id)
            return ended.state == control_pb2.JOB_STATE_FAILED and not ended.HasField("files")
    await prey.doors.remote.cancel(job_id)
    return False


async def write_outside_the_work_directory(prey: Prey) -> bool:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as elsewhere:
        tree = json.loads(prey.doors.job(1).to_json()) | {"output": {"dir": elsewhere}}
        request = submission(prey.doors.job(1), "outside")
        request.job_json = json.dumps(tree)
        return await _fails(prey, request) and not os.listdir(elsewhere)


async def resume_under_a_path(prey: Prey) -> bool:
    return await _fails(prey, _resuming(prey, "..", str(prey.doors.folder / "work")))


async def resume_from_outside_the_work_directory(prey: Prey) -> bool:
    return await _fails(prey, _resuming(prey, "left", "/etc"))


def _resuming(prey: Prey, job_id: str, folder: str) -> control_pb2.SubmitJobRequest:
    request = submission(prey.doors.job(1), f"resume {job_id}")
    request.resume_job_id, request.resume_from = job_id, folder
    request.resume_policy.CopyFrom(common_pb2.Policy(fork=0, version=1))
    return request


async def submit_a_job_file_of_7_mib(prey: Prey) -> bool:
    request = submission(prey.doors.job(1), "huge")
    request.job_json += " " * (7 << 20)
    try:
        await prey.doors.remote.submit(request)
    except ConfigError:
        return all(each.state == "ready" for each in (await prey.doors.remote.fleet()).regions)
    return False


async def leave_the_sandbox(prey: Prey) -> bool:
    return await _program("leave_the_sandbox")


async def equal_everything(prey: Prey) -> bool:
    return await _program("equal_everything")


async def read_the_environment_of_the_worker(prey: Prey) -> bool:
    return await _program("read_the_environment_of_the_worker")


async def _program(name: str) -> bool:
    # A worker of its own: one that speaks gRPC, as this process does, must not fork. Its environment has the secret.
    words = [sys.executable, "-m", "bench.doors.programs", name]
    variables = os.environ | {"DOOR_SECRET": programs.HIDDEN}
    worker = await asyncio.create_subprocess_exec(*words, env=variables, stdout=asyncio.subprocess.PIPE)
    return (await worker.communicate())[0].split()[-1:] == [b"refused"]


async def command_a_terminal(prey: Prey) -> bool:
    """Show escape sequences in the name of a region, an error, and a job's name, as the commands print them."""
    evil = "\x1b[2J\x1b]0;x\x07\u202e"
    shown: list[bytes] = []
    for words in (("job", "show", evil), ("job", "cancel", evil), ("job", "list"), ("job", "audit", evil)):
        command = [sys.executable, "-m", "periplus", *words]
        variables = os.environ | {"PERIPLUS_COORDINATOR": prey.doors.coordinator, "PERIPLUS_TOKEN": prey.doors.token}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, env=variables, stdout=pipe, stderr=pipe)
        shown += await process.communicate()
    told = b"".join(shown)
    async with rpc.channel(prey.doors.coordinator) as channel:
        stub: Any = control_pb2_grpc.CoordinatorStub(channel)
        call = stub.Session(metadata=prey.doors.owner)
        hello = control_pb2.Hello(region=f"r{evil}", boot_id="b", gateway_address="127.0.0.1:1")
        try:
            with rpc.remote_errors(prey.doors.coordinator):
                await call.write(control_pb2.AgentMessage(sequence=1, hello=hello))
                await call.read()
        except ConfigError:
            return bool(told) and not any(each in told for each in (b"\x1b", b"\x07", "\u202e".encode()))
    return False


ATTACKS: tuple[Callable[[Prey], Awaitable[bool]], ...] = (
    subscribe_as_a_stranger,
    take_leases_as_a_stranger,
    train_without_the_secret,
    train_without_a_certificate,
    answer_leases_with_inventions,
    join_as_a_region_without_the_token,
    submit_as_another_user,
    write_outside_the_work_directory,
    resume_under_a_path,
    resume_from_outside_the_work_directory,
    submit_a_job_file_of_7_mib,
    leave_the_sandbox,
    equal_everything,
    read_the_environment_of_the_worker,
    command_a_terminal,
)


@asynccontextmanager
async def _prey() -> AsyncIterator[Prey]:
    async with doors_of_a_fleet(jobs_per_region=2) as doors:
        job_id, secret = await doors.start(doors.job(1_000_000), "prey")
        yield Prey(doors=doors, job_id=job_id, secret=secret)
        await doors.remote.cancel(job_id)


async def _attacked() -> dict[str, object]:
    found: dict[str, object] = {}
    async with _prey() as prey:
        for attack in ATTACKS:
            try:
                found[attack.__name__] = await attack(prey)
            except Exception as error:  # an attack that ends otherwise was not refused
                found[attack.__name__] = f"{type(error).__name__}: {error}"
            print(f"{attack.__name__}: {found[attack.__name__]}", file=sys.stderr, flush=True)
        state = (await prey.doors.remote.job(prey.job_id)).state
        found["job runs on"] = state == control_pb2.JOB_STATE_RUNNING
        found["tracebacks"] = prey.doors.tracebacks()
    return found


def attacks_refused() -> tuple[float, dict[str, Any]]:
    """Return how many attacks were refused, and how each of them ended. None counts if the job did not go on."""
    found = asyncio.run(_attacked())
    number = sum(found[attack.__name__] is True for attack in ATTACKS)
    return (number if found["job runs on"] else 0), found
