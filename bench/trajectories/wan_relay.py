"""Claim: the WAN emulator carries over 500 MB/s when off, and holds rate and round-trip time within 5 % when shaping.

The emulator runs as the process that users start (`periplus wan run`), and its links are set over its control
interface. A sender process, the emulator and the receiver share the machine. First a random payload crosses the link in
both directions, and is compared byte for byte; the counters must agree. The same run measures two peers: the transfer
over plain loopback, and through a short relay on asyncio streams that shapes nothing. Each rate is the median of
several runs, and each round-trip time the median of many pings. The last line is one JSON object.
"""

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import provenance
from periplus.wan.client import LinkProperty, WanControl

SRC, DST = "a", "b"
MIN_OFF_MBYTES_PER_S = 500.0
"""Target: least rate without shaping, in MB/s."""
MAX_ERROR = 0.05
"""Target: largest relative error of a rate or round-trip time with shaping."""
WRITE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    repeats: int
    off_bytes: int
    rate_s: float  # length of one rate measurement
    pings: int
    rates_mbit_per_s: tuple[float, ...]
    rtts_ms: tuple[float, ...]


FULL = Config(
    repeats=5,
    off_bytes=2 << 30,
    rate_s=1.0,
    pings=21,
    rates_mbit_per_s=(1, 10, 40, 100, 250, 500, 1000, 1500),
    rtts_ms=(5, 10, 30, 80, 150, 300),
)
QUICK = Config(
    repeats=3, off_bytes=1 << 30, rate_s=0.6, pings=11, rates_mbit_per_s=(10, 100, 500, 1000), rtts_ms=(10, 80, 200)
)


@contextmanager
def emulator() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        command = [sys.executable, "-m", "periplus", "wan", "run", "--grid", "off", "--regions", f"{SRC},{DST}"]
        command += ["--control", "127.0.0.1:0"]
        child = subprocess.Popen([*command, "--ready-file", str(ready), "--stop-on-stdin-eof"], stdin=subprocess.PIPE)
        try:
            deadline_s = time.monotonic() + 20
            while not ready.exists():
                if child.poll() is not None or time.monotonic() > deadline_s:
                    raise SystemExit("the emulator did not start")
                time.sleep(0.02)
            yield json.loads(ready.read_text())["control"]
        finally:
            child.terminate()
            child.wait()


@contextmanager
def working(target: Callable[..., None], *arguments: object) -> Iterator[None]:
    child = multiprocessing.Process(target=target, args=arguments, daemon=True)
    child.start()
    try:
        yield
    finally:
        child.terminate()
        child.join()


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def listening() -> tuple[socket.socket, str]:
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"127.0.0.1:{listener.getsockname()[1]}"


def send_zeros(address: str, num_bytes: int) -> None:
    with dial(address) as connection:
        block = bytes(WRITE_BYTES)
        while num_bytes > 0:
            connection.sendall(block[:num_bytes])
            num_bytes -= len(block)
        connection.recv(1)


def echo(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := connection.recv(WRITE_BYTES):
                connection.sendall(data)


def plain_relay(listener: socket.socket, host: str, port: int) -> None:
    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(64 << 10):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, port)
        await asyncio.gather(pipe(reader, far_writer), pipe(far_reader, writer))

    async def serve() -> None:
        server = await asyncio.start_server(handle, sock=listener)
        await server.serve_forever()

    asyncio.run(serve())


def receive_bytes_per_s(listener: socket.socket, address: str, num_bytes: int) -> float:
    """Return the rate of a transfer to `listener` by a sender that dials `address`, from first to last arrival."""
    buffer = bytearray(1 << 20)
    with working(send_zeros, address, num_bytes):
        connection, _ = listener.accept()
        with connection:
            first = received = connection.recv_into(buffer)
            first_s = time.monotonic()
            while received < num_bytes:
                received += connection.recv_into(buffer)
            return (received - first) / (time.monotonic() - first_s)


def round_trip_s(address: str, num_pings: int) -> float:
    with dial(address) as connection:
        trips_s = []
        for _ in range(num_pings + 1):
            begun_s = time.monotonic()
            connection.sendall(b"p")
            assert connection.recv(1) == b"p"
            trips_s.append(time.monotonic() - begun_s)
    return statistics.median(trips_s[1:])  # the first one opens the connection too


def check_bytes(address: str) -> int:
    """Check that a payload comes back unchanged, and return its size."""
    payload = random.Random(1).randbytes(8 << 20)
    with dial(address) as connection, working(_send_and_end, connection, payload):
        digest, received = hashlib.sha256(), 0
        while data := connection.recv(1 << 20):
            digest.update(data)
            received += len(data)
    assert received == len(payload), f"{received} of {len(payload)} bytes came back"
    assert digest.digest() == hashlib.sha256(payload).digest(), "bytes changed on the way"
    return received


def _send_and_end(connection: socket.socket, payload: bytes) -> None:
    connection.sendall(payload)
    connection.shutdown(socket.SHUT_WR)
    time.sleep(60)


class Control:
    """Control of the emulator for code without an event loop."""

    def __init__(self, address: str) -> None:
        self._address = address

    def route(self, address: str) -> str:
        async def call() -> str:
            async with WanControl(self._address) as wan:
                await wan.attach(DST, address)
                return await wan.route(SRC, address)

        return asyncio.run(call())

    def set_both(self, property_: LinkProperty, value: float) -> None:
        async def call() -> None:
            async with WanControl(self._address) as wan:
                await wan.set_link(SRC, DST, property_, value)
                await wan.set_link(DST, SRC, property_, value)

        asyncio.run(call())

    def delivered_bytes(self) -> list[int]:
        async def call() -> list[int]:
            async with WanControl(self._address) as wan:
                return [link.delivered_bytes for link in await wan.counters()]

        return asyncio.run(call())


def median_mbytes_per_s(config: Config, listener: socket.socket, address: str) -> float:
    return statistics.median(
        receive_bytes_per_s(listener, address, config.off_bytes) / 1e6 for _ in range(config.repeats)
    )


def measure(config: Config) -> dict[str, object]:
    echo_listener, echo_address = listening()
    sink_listener, sink_address = listening()
    plain_listener, plain_address = listening()
    host, _, port = sink_address.rpartition(":")
    with (
        emulator() as control_address,
        working(echo, echo_listener),
        working(plain_relay, plain_listener, host, int(port)),
    ):
        control = Control(control_address)
        echo_route, sink_route = control.route(echo_address), control.route(sink_address)
        size_bytes = check_bytes(echo_route)
        assert control.delivered_bytes() == [size_bytes, size_bytes], "the counters differ from what was sent"

        speeds = {
            "relay_off_mbytes_per_s": median_mbytes_per_s(config, sink_listener, sink_route),
            "asyncio_streams_relay_mbytes_per_s": median_mbytes_per_s(config, sink_listener, plain_address),
            "loopback_mbytes_per_s": median_mbytes_per_s(config, sink_listener, sink_address),
            "relay_off_rtt_ms": round_trip_s(echo_route, 200) * 1e3,
        }
        rates = []
        control.set_both(LinkProperty.RTT, 0.04)
        for rate in config.rates_mbit_per_s:
            control.set_both(LinkProperty.RATE, rate * 1e6)
            num_bytes = int(rate * 1e6 / 8 * config.rate_s)
            measured = statistics.median(
                receive_bytes_per_s(sink_listener, sink_route, num_bytes) * 8 / 1e6 for _ in range(config.repeats)
            )
            rates.append({"set_mbit_per_s": rate, "measured_mbit_per_s": measured, "error": measured / rate - 1})
        rtts = []
        control.set_both(LinkProperty.RATE, 100e6)
        for rtt_ms in config.rtts_ms:
            control.set_both(LinkProperty.RTT, rtt_ms / 1e3)
            measured = round_trip_s(echo_route, config.pings) * 1e3
            rtts.append({"set_ms": rtt_ms, "measured_ms": measured, "error": measured / rtt_ms - 1})
    return {**speeds, "rates": rates, "rtts": rtts}


def _reach(results: dict[str, object]) -> list[dict[str, object]]:
    def worst(name: str) -> float:
        rows = results[name]
        assert isinstance(rows, list)
        return max(abs(float(row["error"])) for row in rows)

    off = results["relay_off_mbytes_per_s"]
    assert isinstance(off, float)
    return [
        _row("relay_off", off, "MB/s", ">=", MIN_OFF_MBYTES_PER_S, off >= MIN_OFF_MBYTES_PER_S),
        *(
            _row(f"worst_{kind}_error", worst(rows), "fraction", "<=", MAX_ERROR, worst(rows) <= MAX_ERROR)
            for kind, rows in (("rate", "rates"), ("rtt", "rtts"))
        ),
    ]


def _row(name: str, value: float, unit: str, op: str, target: float, ok: bool) -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit, "op": op, "target": target, "ok": ok}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, within a minute")
    config = QUICK if parser.parse_args().quick else FULL
    load = os.getloadavg()[0]
    results = measure(config)
    reach = _reach(results)
    settings = {name: getattr(config, name) for name in Config.__slots__}
    record = {
        "bench": "wan_relay",
        "commit": provenance.commit(),
        "machine": provenance.machine(load),
        "config": settings,
        "results": results,
        "reach": reach,
    }
    print(json.dumps(record))
    return 0 if all(row["ok"] for row in reach) else 1


if __name__ == "__main__":
    sys.exit(main())
