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
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from bench.doors.fleet import REGIONS, Doors, doors_of_a_fleet
from coordinator.client.connection import connect
from coordinator.client.submission import submission
from coordinator.members.access import Access
from periplus.codec.frame import CodecId, Frame
from periplus.codec.trajectory import encode
from periplus.errors import ConfigError, Denied, PeriplusError, Unreachable
from periplus.net import parties, rpc
from periplus.net.convert import keyed_frame_to_pb
from periplus.net.parties import COORDINATOR
from periplus.net.tokens import metadata_of_job
from periplus.pb.v1 import common_pb2, control_pb2, control_pb2_grpc, gateway_pb2, gateway_pb2_grpc
from periplus.values.digest import payload_digest
from periplus.values.trajectory import PolicyRun, Trajectory, read_only, token_ids
from periplus.values.transport_keys import FrameKey
from rollout_worker.convert import lease_from_pb
from tests.support.ledger.drivers import sampled

ANSWER_S = 10.0
"""Seconds in which a door answers."""

EVIL = "\x1b[2J\x1b]0;x\x07\u202e"
"""Text that clears a terminal, names its window, rings its bell, and turns its direction."""

Attack = Callable[[Doors], Awaitable[bool]]


REFUSED = (Denied, Unreachable)
"""How a call ends that is refused: by a word, or by the end of a connection without a certificate."""


async def _refusal(
    stub: Any, address: str, secured: rpc.Secured | None, method: str, messages: Any, metadata: Any = ()
) -> type | None:
    """Return the class of the error with which a call is refused before it has brought anything, or None."""
    async with rpc.channel(address, secured) as channel:
        begin = getattr(stub(channel), method)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                try:
                    with rpc.remote_errors(address):
                        call = begin(messages[0]) if method == "Subscribe" else begin(metadata=metadata)
                        with contextlib.suppress(asyncio.InvalidStateError):  # `read` says why it has been refused
                            for message in messages if method != "Subscribe" else ():
                                await call.write(message)
                            if method == "Train":
                                await call.done_writing()
                        while (came := await call.read()) and method == "Train" and came.certificate.refused:
                            continue
                except PeriplusError as error:
                    return type(error)
    return None


async def _gateway_denies(doors: Doors, method: str, messages: Any, metadata: Any = ()) -> bool:
    secured = doors.stranger(parties.region(REGIONS[0]))
    return (
        await _refusal(gateway_pb2_grpc.GatewayStub, doors.gateways[0], secured, method, messages, metadata) in REFUSED
    )


async def subscribe_as_a_stranger(doors: Doors) -> bool:
    request = gateway_pb2.SubscribeRequest(job_id=doors.job_id, reader_id="thief")
    return await _gateway_denies(doors, "Subscribe", [request])


async def take_leases_as_a_stranger(doors: Doors) -> bool:
    hello = gateway_pb2.WorkerHello(job_id=doors.job_id, region="a", epoch=1)
    kinds: Any = {"hello": hello}, {"capacity": gateway_pb2.Capacity(num_samples=64)}
    messages = [gateway_pb2.RolloutUp(worker_id="thief", **kind) for kind in kinds]
    return await _gateway_denies(doors, "Rollout", messages, metadata_of_job("0" * 64))


async def train_without_the_secret(doors: Doors, metadata: Any = ()) -> bool:
    hello = gateway_pb2.TrainerHello(job_id=doors.job_id, fork=999, public_key=os.urandom(32))
    return await _gateway_denies(doors, "Train", [gateway_pb2.TrainerUp(hello=hello)], metadata)


async def train_without_a_certificate(doors: Doors) -> bool:
    return await train_without_the_secret(doors, metadata_of_job(doors.secret))


async def answer_leases_with_inventions(doors: Doors) -> bool:
    """Answer leases as a worker of the job, with another prompt and a reward of 1000, and look at the training.

    It says that it has each version, with the digest that everybody reads in the publication.
    """
    metadata, sent, writing = metadata_of_job(doors.secret), 0, asyncio.Lock()
    async with rpc.channel(doors.gateways[0], doors.worker()) as channel:
        stub: Any = gateway_pb2_grpc.GatewayStub(channel)
        call = stub.Rollout(metadata=metadata)

        async def write(**kind: Any) -> None:
            async with writing:
                await call.write(gateway_pb2.RolloutUp(worker_id="liar", **kind))

        async def prove() -> None:
            async for record in stub.Subscribe(gateway_pb2.SubscribeRequest(job_id=doors.job_id), metadata=metadata):
                if record.HasField("opening"):
                    opening, content = record.opening, b""
                content += record.chunk.data
                if record.HasField("closing") and opening.kind == gateway_pb2.PUBLICATION_KIND_BUNDLE:
                    job: Any = {"job_id": doors.job_id, "bundle_digest": payload_digest(content)}
                    await write(hello=gateway_pb2.WorkerHello(region="a", epoch=1, **job))
                    await write(capacity=gateway_pb2.Capacity(num_samples=16))
                elif record.HasField("closing"):
                    proof: Any = {"policy": opening.policy, "state_digest": record.closing.state_digest}
                    await write(proof=gateway_pb2.WeightProof(ok=True, engine_checked=True, **proof))

        proving = asyncio.create_task(prove())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                async for message in call:
                    for lease in message.leases.leases:
                        frame = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, encode([_invented(lease)]))
                        key = FrameKey(worker_id="liar", epoch=1, sequence=sent)
                        async with writing:
                            await call.write(keyed_frame_to_pb(key, frame, ""))
                        sent += 1
        proving.cancel()
        await asyncio.gather(proving, return_exceptions=True)
    rewards = await _rewards(doors, 5)
    print(f"{sent} inventions sent; mean rewards up to {max(rewards)}", file=sys.stderr)
    return sent > 0 and max(rewards) <= 1


async def _rewards(doors: Doors, number: int) -> list[float]:
    """Wait until that many more steps are done, and return the mean rewards of all steps."""
    rewards: list[float] = []
    first = (await doors.remote.job(doors.job_id)).policy.version
    async for event in doors.remote.watch(doors.job_id):
        if event.HasField("step") and event.step.kind == "step":
            rewards.append(event.step.values["reward_mean"])
            if event.step.policy.version >= first + number:
                break
    return rewards


def _invented(lease: gateway_pb2.Lease) -> Trajectory:
    known: Any = lease_from_pb(lease)
    made: dict[str, Any] = {"prompt_ids": token_ids([7, 7]), "completion_ids": token_ids([5]), "metadata": ""}
    made |= {"logprobs": read_only([-0.5], np.float32), "mask": read_only([True], np.bool_), "reward": 1000.0}
    return sampled(known, "liar", **made, policies=(PolicyRun(known.start_at, 1),))


async def join_as_a_region_without_the_token(doors: Doors) -> bool:
    stranger = doors.stranger(COORDINATOR)
    refused = await _session_refusal(doors, control_pb2.Hello(region="thief", boot_id="b"), stranger)
    return refused in REFUSED and "thief" not in [each.name for each in (await doors.remote.fleet()).regions]


async def _session_refusal(doors: Doors, hello: control_pb2.Hello, secured: rpc.Secured | None) -> type | None:
    hello.gateway_address = "127.0.0.1:1"
    hello.inventory.machines.add(name="big", num_cores=64, memory_bytes=1 << 40)
    messages = [control_pb2.AgentMessage(sequence=1, hello=hello)]
    return await _refusal(control_pb2_grpc.CoordinatorStub, doors.coordinator, secured, "Session", messages)


async def submit_as_another_user(doors: Doors) -> bool:
    keys = [each for name in ("state", "identity", "coordinator") for each in doors.folder.glob(f"{name}/**/*.pem")]
    readable = [each for each in keys if each.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]
    try:
        async with connect(doors.coordinator, Access(secured=doors.stranger(COORDINATOR))) as stranger:
            await stranger.submit(submission(doors.job(1), "stolen"))
    except REFUSED:
        return bool(keys) and not readable
    return False


async def _fails(doors: Doors, request: control_pb2.SubmitJobRequest) -> bool:
    """Return whether a job of the owner is refused, or fails before any process of it has run."""
    try:
        job_id = (await doors.remote.submit(request)).job_id
    except PeriplusError:
        return True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            ended = await doors.ended(job_id)
            return ended.state == control_pb2.JOB_STATE_FAILED and not ended.HasField("files")
    await doors.remote.cancel(job_id)
    return False


async def write_outside_the_work_directory(doors: Doors) -> bool:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as elsewhere:
        request = submission(doors.job(1), "outside")
        request.job_json = json.dumps(json.loads(doors.job(1).to_json()) | {"output": {"dir": elsewhere}})
        return await _fails(doors, request) and not os.listdir(elsewhere)


async def resume_under_a_path(doors: Doors) -> bool:
    return await _resuming_fails(doors, "..", str(doors.folder / "work"))


async def resume_from_outside_the_work_directory(doors: Doors) -> bool:
    return await _resuming_fails(doors, "left", "/etc")


async def _resuming_fails(doors: Doors, job_id: str, folder: str) -> bool:
    request = submission(doors.job(1), f"resume {job_id}")
    request.resume_job_id, request.resume_from = job_id, folder
    request.resume_policy.CopyFrom(common_pb2.Policy(fork=0, version=1))
    return await _fails(doors, request)


async def submit_a_job_file_of_7_mib(doors: Doors) -> bool:
    request = submission(doors.job(1), "huge")
    request.job_json += " " * (7 << 20)
    try:
        await doors.remote.submit(request)
    except ConfigError:
        return all(each.state == "ready" for each in (await doors.remote.fleet()).regions)
    return False


async def command_a_terminal(doors: Doors) -> bool:
    """Show escape sequences in the name of a region, an error, and a job's name, as the commands print them."""
    variables = {"PERIPLUS_COORDINATOR": doors.coordinator, "PERIPLUS_IDENTITY": str(doors.folder / "identity")}
    commands = (("show", EVIL), ("cancel", EVIL), ("list",), ("audit", EVIL))
    told = b"".join([await _output("periplus", "job", *words, **variables) for words in commands])
    refused = await _session_refusal(doors, control_pb2.Hello(region=f"r{EVIL}", boot_id="b"), doors.access.secured)
    return (
        refused in (ConfigError, *REFUSED)
        and bool(told)
        and not any(each.encode() in told for each in "\x1b\x07\u202e")
    )


def _commands(told: bytes) -> bool:
    return any(each.encode() in told for each in "\x1b\x07\u202e")


async def _output(module: str, *words: str, **variables: str) -> bytes:
    """Return what a program of its own writes: a process that speaks gRPC, as this one does, must not fork."""
    kept: Any = {"env": os.environ | variables, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *words, **kept)
    return b"".join(await process.communicate())


async def _passes(test: str, doors: Doors) -> bool:
    return b"1 passed" in await _output("pytest", "-q", f"tests/rollout_worker/rewards/{test}")


EQUAL = "test_an_object_that_claims_to_equal_everything_passes_nothing"
CALLS = "test_calls_that_reach_beyond_the_sandbox_or_its_limits_are_refused"

ATTACKS: Mapping[str, Attack] = {
    each.__name__: each
    for each in (
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
        command_a_terminal,
    )
} | {
    # Programs that a model or a user wrote: tests run them against the worker's own code.
    "leave_the_sandbox": partial(_passes, f"sandbox/test_run.py::{CALLS}"),
    "equal_everything": partial(_passes, f"functions/test_code.py::TestSandboxed::{EQUAL}"),
    "read_the_environment_of_the_worker": partial(_passes, "test_pool.py::test_functions_see_no_other_process"),
}


async def _attacked() -> dict[str, object]:
    found: dict[str, object] = {}
    async with doors_of_a_fleet(jobs_per_region=2) as doors:
        await doors.start(1_000_000, "prey")
        for name, attack in ATTACKS.items():
            try:
                found[name] = await attack(doors)
            except Exception as error:  # an attack that ends otherwise was not refused
                found[name] = f"{type(error).__name__}: {error}"
            print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
        state = (await doors.remote.job(doors.job_id)).state
        found["job runs on"] = state == control_pb2.JOB_STATE_RUNNING
        found["tracebacks"] = doors.tracebacks()
        await doors.remote.cancel(doors.job_id)
    return found


def attacks_refused() -> tuple[float, dict[str, Any]]:
    """Return how many attacks were refused, and how each of them ended. None counts if the job did not go on."""
    found = asyncio.run(_attacked())
    return (sum(found[name] is True for name in ATTACKS) if found["job runs on"] else 0), found
