"""Seeded calls of every method of a coordinator and its gateways, with wrong metadata, contents, sizes and orders.

Calls have the certificates of an operator or of a worker. A call shows no secret, a wrong or the right one. With the
right one its content is nonsense, except that it may name what exists: the job, its regions, its workers, and what its
trainer has published. What a caller may do by right is left out: an operator may cancel the job, an agent may join, and
a worker may take leases and fail at them.
"""

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from bench.doors.fleet import REGIONS, Doors
from periplus.net import rpc
from periplus.net.tokens import JOB_KEY
from periplus.pb.v1 import control_pb2, gateway_pb2
from region_agent.gateway.service import REGION_KEY

ANSWER_S = 0.25
"""Seconds that a call waits for its end before it is left."""
MAX_LEFT_OPEN = 12
"""Streams that stay open beside the others; the oldest is then left."""
SIZES = (0, 1, 7, 32, 33, 64, 1000, 70_000)
HUGE = 13 << 20
"""Bytes of a field that makes a message larger than a server takes."""
TEXTS = ("", "..", "../x", "/", "a/b", "\x1b[2J\u202e", "{}")
FLOATS = (0.0, -1.0, 1e-300, 3e38, float("inf"), float("nan"))
COORDINATOR = control_pb2.DESCRIPTOR.services_by_name["Coordinator"]
GATEWAY = gateway_pb2.DESCRIPTOR.services_by_name["Gateway"]


class Fuzz:
    """Makes calls until told to stop. `counts` has the calls by method, metadata and end.

    Messages may name `records` of the job's publications, and `texts`.
    """

    def __init__(self, doors: Doors, seed: int) -> None:
        self.records: Sequence[gateway_pb2.PublicationRecord] = ()
        self.texts: Sequence[str] = ()
        self.counts = Counter[str]()
        self._doors = doors
        self._seed = seed
        self._open: deque[Any] = deque()
        self._coordinator: Any = rpc.channel(doors.coordinator, doors.access.secured)
        self._gateways: list[Any] = []

    async def come_as_processes(self) -> None:
        """Call gateways as the processes of the newest job from now on, each in its own region."""
        for channel in self._gateways:
            await channel.close()
        ends = zip(REGIONS, self._doors.gateways, strict=True)
        pairs = [(address, each) for name, address in ends for each in self._doors.processes(name).values()]
        self._gateways = [rpc.channel(address, secured) for address, secured in pairs]

    async def close(self) -> None:
        for channel in (self._coordinator, *self._gateways):
            await channel.close()

    async def call(self, index: int) -> None:
        """Make the call with this number, and count how it ended."""
        draw = random.Random(f"{self._seed} {index}")
        drawn = _Drawn(draw, self._doors, self.records, self.texts)
        channel = draw.choice([self._coordinator, *self._gateways])
        service = COORDINATOR if channel is self._coordinator else GATEWAY
        if draw.random() < 0.02:  # a method that this service lacks
            service = GATEWAY if service is COORDINATOR else COORDINATOR
        method = draw.choice(service.methods)
        # A caller of the coordinator is known by its certificate, whatever its metadata show.
        shows = "right" if channel is self._coordinator else draw.choice(("nothing", "wrong", "right"))
        messages = [drawn.message(method, shows) for _ in range(draw.choice((0, 1, 1, 2, 5)))]
        ways = (("stream" if streams else "unary") for streams in (method.client_streaming, method.server_streaming))
        call = getattr(channel, "_".join(ways))(f"/{service.full_name}/{method.name}")
        try:
            end = await self._make(call, method, messages, drawn.metadata(shows), draw)
        except grpc.aio.AioRpcError as error:
            end = error.code().name
        except (asyncio.InvalidStateError, grpc.aio.UsageError):
            end = "ENDED"
        self.counts[f"{method.name} {shows} {end}"] += 1

    async def _make(
        self, begin: Any, method: MethodDescriptor, messages: Sequence[bytes], metadata: Any, draw: random.Random
    ) -> str:
        content = [] if method.client_streaming else [messages[0] if messages else b""]
        call = begin(*content, metadata=metadata)
        way = draw.choice(("read", "read", "half-close", "open", "cancel"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                if method.client_streaming:
                    for message in messages:
                        await call.write(message)
                    if way == "half-close":
                        await call.done_writing()
                if way == "open" and (method.client_streaming or method.server_streaming):
                    self._open.append(call)
                    if len(self._open) > MAX_LEFT_OPEN:
                        self._open.popleft().cancel()
                    return "open"
                if way == "cancel":
                    call.cancel()
                    return "cancelled"
                while method.server_streaming and await call.read() is not grpc.aio.EOF:
                    pass
                return str((await call.code()).name)
        call.cancel()
        return "no answer"


class _Drawn:
    """The metadata and the messages of one call, by a random source."""

    def __init__(self, draw: random.Random, doors: Doors, records: Sequence[Message], texts: Sequence[str]) -> None:
        self._random, self._doors, self._records = draw, doors, records
        self._texts = (*[doors.job_id] * 3, *REGIONS, *texts, *TEXTS, f"{doors.job_id}/trainer", "step", "notice", "\0")

    def metadata(self, shows: str) -> tuple[tuple[str, str], ...]:
        draw, doors = self._random, self._doors
        region = ((REGION_KEY, draw.choice((*REGIONS, "no region", "x" * 300))),) if draw.random() < 0.3 else ()
        wrong = draw.choice(("", "0" * 64, "x" * 3000, doors.secret[:-1]))
        secret = doors.secret if shows == "right" else wrong
        return region if shows == "nothing" else ((JOB_KEY, secret), *region)

    def message(self, method: MethodDescriptor, shows: str) -> bytes:
        draw = self._random
        made: Any = message_factory.GetMessageClass(method.input_type)()
        if method.name == "Publish" and self._records and draw.random() < 0.5:
            made.CopyFrom(draw.choice(self._records))
        else:
            self._fill(made, depth=0)
        if shows == "right":
            _spare(made)
        raw: bytes = made.SerializeToString()
        if draw.random() < 0.1 and raw and shows != "right":  # bytes that are no message, or another one
            at = draw.randrange(len(raw))
            raw = raw[:at] + bytes([draw.randrange(256)]) + raw[at + draw.randrange(2) :]
        return raw

    def _fill(self, message: Any, depth: int) -> None:
        chosen = {of.name: self._random.choice(of.fields).name for of in message.DESCRIPTOR.oneofs}
        for each in message.DESCRIPTOR.fields:
            is_left_out = each.containing_oneof is not None and chosen[each.containing_oneof.name] != each.name
            if not is_left_out and self._random.random() < 0.8:
                self._fill_field(message, each, depth)

    def _fill_field(self, message: Any, each: FieldDescriptor, depth: int) -> None:
        draw, field = self._random, getattr(message, each.name)
        number = draw.choice((0, 1, 3)) if each.is_repeated else 1
        if each.message_type is not None and each.message_type.GetOptions().map_entry:
            if each.message_type.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING:
                field[self._text()] = draw.choice((float("nan"), 1e308, 1.0))
            else:
                field[self._number(32)] = self._number(64)
        elif each.message_type is not None:
            for _ in range(number if depth < 4 else 0):
                self._fill(field.add() if each.is_repeated else field, depth + 1)
        elif each.is_repeated:
            field.extend(self._scalar(each) for _ in range(number))
        else:
            setattr(message, each.name, self._scalar(each))

    def _scalar(self, each: FieldDescriptor) -> Any:
        draw = self._random
        match each.type:
            case FieldDescriptor.TYPE_STRING:
                return self._text()
            case FieldDescriptor.TYPE_BYTES:
                return draw.randbytes(HUGE if draw.random() < 0.002 else draw.choice(SIZES))
            case FieldDescriptor.TYPE_BOOL:
                return draw.random() < 0.5
            case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
                return draw.choice(FLOATS)
            case FieldDescriptor.TYPE_ENUM:
                return draw.choice((0, 1, 2, 5, 99))
            case _:
                return self._number(32 if each.type == FieldDescriptor.TYPE_UINT32 else 64)

    def _text(self) -> str:
        return self._random.choice((*self._texts, "z" * self._random.choice(SIZES)))

    def _number(self, bits: int) -> int:
        numbers = (0, 1, 2, 17, (1 << (bits - 1)) - 1, (1 << bits) - 1, self._random.getrandbits(bits))
        return self._random.choice(numbers)


def _spare(message: Any) -> None:
    """Take from a message of one who may call what it may do by right."""
    match message:
        case control_pb2.CancelJobRequest():
            message.job_id = message.job_id + "~"
        case control_pb2.AgentMessage() if message.HasField("hello"):
            message.hello.region = "no region" if message.hello.region not in REGIONS else message.hello.region
        case gateway_pb2.RolloutUp() if message.HasField("hello") or message.HasField("failed"):
            message.worker_id = message.worker_id + "~"
        case gateway_pb2.RolloutUp() if message.HasField("capacity"):
            message.capacity.num_samples = 0
