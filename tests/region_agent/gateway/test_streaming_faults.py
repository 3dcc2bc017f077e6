"""A worker, its gateway and the ledger over links that lose what is under way, with everything dying at any time."""

import asyncio
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.codec.frame import CodecId, Frame
from periplus.spool.format import Durability
from periplus.values.transport_keys import FrameKey, KeyedFrame, SeenFrames
from region_agent.gateway.hub import JobHub
from region_agent.gateway.messages import LocalCommit, UpKind
from tests.support.cases.examples import examples
from tests.support.gateway.loopback import JOB, frame_spool, relayed, weight_cache
from tests.support.gateway.spool_disk import SpoolDisk

ROUTINE = ("put", "to gateway", "acknowledge", "to worker", "up", "to ledger", "down")
FAULTS = ("cut worker", "cut up", "kill", "power", "fork")
STEPS = ("put", "to gateway", *ROUTINE, *ROUTINE, *FAULTS)


class World:
    """Five lists of what is under way, and the three who keep something: the worker, the spool, the ledger."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self.choose = choose
        self.disk = SpoolDisk()
        self.num_put = 0
        self.kept: list[FrameKey] = []  # by the worker: not acknowledged
        self.acknowledged: set[FrameKey] = set()
        self.ledger: set[FrameKey] = set()
        self.num_taken_in = 0
        self.seen = SeenFrames()
        self.to_gateway: list[FrameKey] = []
        self.to_worker: list[FrameKey] = []
        self.to_ledger: list[FrameKey] = []
        self.down: list[LocalCommit] = []

    async def start_gateway(self) -> None:
        frames = frame_spool(self.disk, durability=Durability.MACHINE, max_bytes=1 << 24)
        self.hub = JobHub(JOB, "far", frames, weight_cache(), secret="")
        assert self.acknowledged - self.ledger <= set(frames.pending), "an acknowledged frame is nowhere"
        await self.connect_worker()
        self.connect_up()

    async def connect_worker(self) -> None:
        self.stream = self.hub.open_stream("")
        await self.hub.take_up(self.stream, relayed("w", UpKind.HELLO))
        self.to_worker.clear()
        self.to_gateway = list(self.kept)

    def connect_up(self) -> None:
        self.to_ledger.clear()
        self.down.clear()
        self.hub.resend_uncommitted()

    async def step(self, what: str) -> None:
        match what:
            case "put":
                key = FrameKey(worker_id="w", epoch=1, sequence=self.num_put)
                self.num_put += 1
                self.kept.append(key)
                self.to_gateway.append(key)
            case "to gateway" if self.to_gateway:
                key = self.to_gateway.pop(self.choose(len(self.to_gateway) - 1) if self.choose(5) == 0 else 0)
                frame = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, str(key.sequence).encode())
                await self.hub.take_up(self.stream, KeyedFrame(key, frame))
            case "acknowledge" if self.stream.num_taken:
                keys = await self.stream.next_taken()
                await self.hub.frames.durable()
                self.to_worker += keys
            case "to worker" if self.to_worker:
                key = self.to_worker.pop(0)
                self.acknowledged.add(key)
                self.kept = [one for one in self.kept if one != key]
            case "up" if len(self.hub.up):
                try:
                    async with asyncio.timeout(0):
                        message = await self.hub.next_up()
                except TimeoutError:
                    return
                if isinstance(message, KeyedFrame):
                    assert message.frame.payload == str(message.key.sequence).encode()
                    self.to_ledger.append(message.key)
            case "to ledger" if self.to_ledger:
                key = self.to_ledger.pop(0)
                self.num_taken_in += self.seen.add(key)
                self.ledger.add(key)
                self.down.append(LocalCommit((key,)))
            case "down" if self.down:
                await self.hub.send_down(self.down.pop(0))
            case _:
                await self.fail(what)

    async def fail(self, what: str) -> None:
        match what:
            case "cut worker":
                await self.hub.close_stream(self.stream, "cut")
                await self.connect_worker()
            case "cut up" | "fork":
                self.hub.end_streams()
                if what == "fork":
                    self.seen = SeenFrames()
                await self.hub.close_stream(self.stream, "the connection up is another")
                await self.connect_worker()
                self.connect_up()
            case "kill":
                self.disk.kill()
                await self.start_gateway()
            case "power":
                self.disk.cut_power(self.choose)
                await self.start_gateway()


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=30, max_size=80), st.data())
def test_every_frame_reaches_the_ledger_and_then_leaves_the_spool(steps: list[str], data: st.DataObject) -> None:
    async def scene() -> None:
        world = World(lambda most: data.draw(st.integers(0, most)))
        await world.start_gateway()
        for what in steps:
            await world.step(what)
        forks = "fork" in steps
        world.choose = lambda most: most
        for _ in range(200):
            if not (world.kept or world.hub.frames.pending):
                break
            for what in ROUTINE[1:]:
                await world.step(what)
        assert world.ledger == {FrameKey(worker_id="w", epoch=1, sequence=number) for number in range(world.num_put)}
        assert world.hub.frames.pending == ()
        assert forks or world.num_taken_in == world.num_put, "the ledger took one in twice"

    asyncio.run(scene())
