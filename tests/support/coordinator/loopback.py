"""A real coordinator on a loopback port, agents that a test plays by hand, and the operator's command line."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Self

import grpc.aio

from coordinator.app import served, serving
from coordinator.client.connection import Coordinator, job_state
from coordinator.config import CoordinatorConfig
from coordinator.members.membership import Membership
from coordinator.store import open_store
from periplus import clock
from periplus.__main__ import run as periplus
from periplus.job.job_file import JobFile
from periplus.net import rpc
from periplus.net.convert import inventory_to_pb
from periplus.net.tokens import TokenGuard
from periplus.pb.v1 import common_pb2, control_pb2, control_pb2_grpc
from tests.support.coordinator.machines import inventory, machine

JOB = {
    "name": "sums",
    "environment": {"name": "chain_sum"},
    "data": {"size": 128},
    "eval": {"num_prompts": 16},
    "sampling": {"prompt_tokens": 64},
    "steps": 3,
}
"""A small job, as a script submits it."""

DEADLINE_S = 200.0
"""Seconds after which a scene is taken to hang. On a busy machine a scene of three commands, each of which plans a job
in a process of its own, took more than 30; chosen by hand."""

Session = Any

Command = Callable[..., Coroutine[Any, Any, int]]
"""Runs one `periplus` command against the coordinator and returns its exit code."""


class FakeAgent:
    """An agent's session for one region. It answers probes, and keeps the tasks that it was last told to run.

    It beats as real agents do: a scene may take longer than a region may be silent, and a job waits for a silent one.
    """

    def __init__(
        self,
        address: str,
        region: str,
        boot_id: str = "boot",
        *,
        allows_own_code: bool = False,
        replica_store: str = "",
        secured: rpc.Secured | None = None,
        gateway_address: str = "",
    ) -> None:
        self.secured, self.gateway_address = secured, gateway_address or f"{region}:1"
        self.allows_own_code, self.replica_store = allows_own_code, replica_store
        self.address, self.region, self.boot_id = address, region, boot_id
        self.epoch, self.sequence = 0, 1
        self.desired: dict[str, control_pb2.Task] = {}
        self.jobs: dict[str, control_pb2.DesiredJob] = {}
        self._heartbeat = control_pb2.Heartbeat()
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self.channel = rpc.channel(self.address, self.secured)
        self.call: Session = control_pb2_grpc.CoordinatorStub(self.channel).Session()
        own = machine(f"host-{self.boot_id}", accelerators=2)
        offered = inventory_to_pb(
            inventory(own, allows_own_code=self.allows_own_code, replica_store=self.replica_store)
        )
        hello = control_pb2.Hello(
            region=self.region, boot_id=self.boot_id, gateway_address=self.gateway_address, inventory=offered
        )
        try:
            with suppress(grpc.aio.AioRpcError):  # a call that is refused already says why to who reads
                await self.call.write(control_pb2.AgentMessage(sequence=1, hello=hello))
            welcome = await self.read()
        except BaseException:
            await self.channel.close()
            raise
        assert welcome.welcome.heartbeat_s == 1
        self.epoch = welcome.epoch
        self._beating = asyncio.create_task(self._beat(welcome.welcome.heartbeat_s))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)  # it has failed if the coordinator ended the call
        self.call.cancel()
        await self.channel.close()

    async def read(self) -> control_pb2.CoordinatorMessage:
        with rpc.remote_errors(self.address):
            async with asyncio.timeout(DEADLINE_S):
                message = await self.call.read()
                if not isinstance(message, control_pb2.CoordinatorMessage):
                    raise await _status(self.call, self.address)
                return message

    async def send(self, **body: Any) -> None:
        self._heartbeat = body.get("heartbeat", self._heartbeat)  # counters stay as they were told last
        async with self._turn:  # messages leave in the order of their numbers
            self.sequence += 1
            await self.call.write(control_pb2.AgentMessage(epoch=self.epoch, sequence=self.sequence, **body))

    async def _beat(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.send(heartbeat=self._heartbeat)

    async def report(
        self,
        task_id: str,
        state: control_pb2.TaskState.ValueType,
        message: str = "",
        fork: int = 0,
        files: control_pb2.RunFiles | None = None,
    ) -> None:
        job_id = task_id.split("/")[0]
        report = control_pb2.TaskReport(
            task_id=task_id,
            job_id=job_id,
            state=state,
            message=message,
            fork=fork,
            files=files,
            cause="lasting",  # nothing is started again in these scenes
        )
        await self.send(task=report)

    async def until(self, done: Callable[[], bool]) -> None:
        """Obey the coordinator's messages until `done`."""
        while not done():
            message = await self.read()
            if message.HasField("desired"):
                self.desired = {task.task_id: task for task in message.desired.tasks}
                self.jobs = {job.job_id: job for job in message.desired.jobs}
            elif message.HasField("probe"):
                link = control_pb2.LinkMeasurement(
                    src_region=self.region, dst_region=message.probe.dst_region, rtt_s=0.1, throughput_bits_per_s=1e8
                )
                await self.send(link=link)

    async def until_desired(self) -> None:
        await self.until(lambda: bool(self.desired))

    async def certificate(self, job_id: str, public_key: bytes, fork: int = 0) -> control_pb2.CertificateAnswer:
        """Ask for a certificate, and return the answer."""
        await self.send(certify=control_pb2.CertificateRequest(job_id=job_id, fork=fork, public_key=public_key))
        while not (message := await self.read()).HasField("certificate"):
            continue
        return message.certificate


async def _status(call: Session, address: str) -> Exception:
    error = grpc.aio.AioRpcError(await call.code(), await call.initial_metadata(), await call.trailing_metadata())
    return rpc.translate(error, address)


@asynccontextmanager
async def coordinator(state_dir: Path | None = None, token_file: Path | None = None) -> AsyncIterator[str]:
    guard = TokenGuard(token_file) if token_file else None
    server = rpc.server((lambda call: guard.check(call.metadata)) if guard else None)
    address = rpc.bind(server, "127.0.0.1:0")
    async with serving(CoordinatorConfig(listen=address, state_dir=state_dir), server):
        yield address


@asynccontextmanager
async def coordinator_with_members(state_dir: Path) -> AsyncIterator[str]:
    """A coordinator whose callers have certificates; its authority lies in `state_dir`."""
    with closing(open_store(state_dir)) as store:
        membership = Membership(store, clock.unix_s)
        server = rpc.server(membership.admit, membership.calls)
        address = rpc.bind(server, "127.0.0.1:0", rpc.ServerIdentity(current=membership.own_identity))
        async with served(CoordinatorConfig(listen=address, state_dir=state_dir), server, store, membership):
            yield address


def play(scene: Callable[[str], Awaitable[None]]) -> None:
    """Run a scene against a coordinator of its own."""

    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), coordinator() as address:
            await scene(address)

    asyncio.run(run())


def submission(request_id: str = "r", **sections: Any) -> control_pb2.SubmitJobRequest:
    tree = {"name": "sums", "environment": {"name": "chain_sum"}, "steps": 3, **sections}
    return control_pb2.SubmitJobRequest(request_id=request_id, job_json=JobFile.model_validate(tree).to_json())


async def wait_for(remote: Coordinator, job_id: str, state: str) -> control_pb2.Job:
    async for event in remote.watch(job_id):
        if event.HasField("job") and job_state(event.job) == state:
            return event.job
    raise AssertionError(f"{job_id} ended without becoming {state}")


def step_record(job_id: str, version: int) -> control_pb2.StepRecord:
    policy = common_pb2.Policy(fork=0, version=version)
    return control_pb2.StepRecord(job_id=job_id, kind="step", policy=policy, values={"reward_mean": 0.5})


def play_commands(scene: Callable[[str, Command], Awaitable[None]]) -> None:
    """Run a scene with a coordinator and a command line, where each command runs in a thread of its own."""

    async def run(address: str) -> None:
        async def command(*words: str) -> int:
            return await asyncio.to_thread(periplus, [*words, "--coordinator", address])

        await scene(address, command)

    play(run)
