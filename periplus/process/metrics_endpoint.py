"""The HTTP endpoint `/metrics` of a process, in the text format of Prometheus.

Samples come in from a function of the process; text goes out. prometheus_client serves it from a thread of its own, and
one thread more for each request, so that a scrape that is slow to read its answer holds up nobody. The samples are read
in that thread: `read` must be safe there (`on_loop` makes it so). Beside them are the process's CPU time, memory and
open files. This module is the only one that knows prometheus_client, and imports it only where metrics are asked for:
that takes a tenth of a second.

The endpoint has no secret and asks for no token. Whoever can reach it can read it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from periplus.net import rpc
from periplus.process.exported_metrics import ExportedMetric, ExportedSample
from periplus.process.telemetry import MetricKind
from periplus.process.telemetry import event as log_event

if TYPE_CHECKING:
    from prometheus_client.core import Metric as MetricOfLibrary

log = logging.getLogger(__name__)

READ_S = 5.0
"""Seconds that a scrape waits for the event loop before it fails. Prometheus itself waits for 10 s. Chosen by hand."""


class ExportedSamples:
    """The samples of a process as a collector of prometheus_client. `metrics` are those that may have samples."""

    def __init__(self, metrics: Sequence[ExportedMetric], read: Callable[[], Iterable[ExportedSample]]) -> None:
        self._metrics = metrics
        self._read = read

    def describe(self) -> Iterator["MetricOfLibrary"]:
        """Yield the metrics without samples, by which prometheus_client finds a collector's names."""
        return self._families(())

    def collect(self) -> Iterator["MetricOfLibrary"]:
        """Read the samples, and yield the metrics that have some."""
        return (family for family in self._families(self._read()) if family.samples)

    def _families(self, samples: Iterable[ExportedSample]) -> Iterator["MetricOfLibrary"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for metric in self._metrics:
            make = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
            families[metric.name] = make(metric.name, metric.sentence, labels=metric.labels)
        for sample in samples:
            families[sample.metric.name].add_metric(sample.labels, sample.value)
        return iter(families.values())


def on_loop(read: Callable[[], Iterable[ExportedSample]]) -> Callable[[], Iterable[ExportedSample]]:
    """Return a function for other threads that has `read` called on the running event loop, and waits for it.

    The function raises TimeoutError if the loop does not answer within `READ_S`.
    """
    loop = asyncio.get_running_loop()

    async def read_there() -> tuple[ExportedSample, ...]:
        return tuple(read())

    return lambda: asyncio.run_coroutine_threadsafe(read_there(), loop).result(READ_S)


@asynccontextmanager
async def exporting(
    address: str, metrics: Sequence[ExportedMetric], read: Callable[[], Iterable[ExportedSample]]
) -> AsyncIterator[str]:
    """Serve metrics at `host:port` while the context lasts, and yield the address; with port 0 the system chooses one.

    If the address is empty, serve nothing and yield an empty text. Raises: Conflict if the address cannot be bound.
    """
    if not address:
        yield ""
        return
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(ExportedSamples(metrics, read))
    host, _, port = address.rpartition(":")
    with rpc.binding(address):
        bare = rpc.try_to_bind(host, int(port))  # a server of http.server may share a port
        # In a thread, since http.server asks for the host's full name.
        server, thread = await asyncio.to_thread(start_http_server, int(port), bare, registry)
    bound = f"{host}:{server.server_port}"
    log_event(log, logging.INFO, "metrics_served", address=bound)
    try:
        yield bound
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)
