"""The endpoint of metrics: what a scraper reads, on which thread, and what happens where it cannot be served."""

import asyncio
import threading
import urllib.error
from collections.abc import Awaitable, Callable, Iterable

import pytest

from periplus.errors import Conflict
from periplus.process import metrics_endpoint
from periplus.process.exported_metrics import AGENT_EPOCH, BUILD_INFO, REGION_SESSIONS, ExportedSample
from periplus.process.metrics_endpoint import exporting, on_loop
from tests.support.processes.scrape import DEADLINE_S, scraped, value

METRICS = (BUILD_INFO, AGENT_EPOCH, REGION_SESSIONS)
ANY = "127.0.0.1:0"


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(2 * DEADLINE_S):
            await scene()

    asyncio.run(run())


def some() -> Iterable[ExportedSample]:
    return (
        AGENT_EPOCH.of(3, region='e"u\\1\n'),
        REGION_SESSIONS.of(2, region="eu"),
        REGION_SESSIONS.of(5, region="us"),
    )


def test_a_scraper_reads_the_samples_with_their_kinds_and_the_process() -> None:
    async def scene() -> None:
        async with exporting(ANY, METRICS, some) as address:
            text = await asyncio.to_thread(scraped, address)
        assert value(text, "periplus_agent_session_epoch", region='e"u\\1\n') == 3
        assert value(text, "periplus_region_sessions_total", region="us") == 5
        assert (value(text, "process_resident_memory_bytes") or 0) > 1e6
        assert "# TYPE periplus_region_sessions_total counter" in text
        assert "# TYPE periplus_agent_session_epoch gauge" in text
        assert "build_info" not in text, "a metric without samples is not there"
        with pytest.raises(urllib.error.URLError):
            await asyncio.to_thread(scraped, address)

    play(scene)


def test_a_scraper_may_ask_for_one_metric() -> None:
    async def scene() -> None:
        async with exporting(ANY, METRICS, some) as address:
            text = await asyncio.to_thread(scraped, f"{address}", "periplus_agent_session_epoch")
        assert value(text, "periplus_agent_session_epoch", region='e"u\\1\n') == 3
        assert "sessions_total" not in text

    play(scene)


def test_without_an_address_nothing_is_served() -> None:
    async def scene() -> None:
        async with exporting("", METRICS, some) as address:
            assert address == ""
            assert all("serve_forever" not in thread.name for thread in threading.enumerate())

    play(scene)


def test_a_port_in_use_is_a_conflict() -> None:
    async def scene() -> None:
        async with exporting(ANY, METRICS, some) as address:
            with pytest.raises(Conflict, match="the port is in use"):
                async with exporting(address, METRICS, some):
                    pass
            assert await asyncio.to_thread(scraped, address)

    play(scene)


def test_an_address_of_another_machine_is_a_conflict() -> None:
    async def scene() -> None:
        with pytest.raises(Conflict, match=r"cannot listen on 192\.0\.2\.1:0: the address is not this machine's"):
            async with exporting("192.0.2.1:0", METRICS, some):
                pass

    play(scene)


def test_an_address_of_ip_version_6_is_served() -> None:
    async def scene() -> None:
        async with exporting("[::1]:0", METRICS, some) as address:
            assert address.startswith("[::1]:")
            assert await asyncio.to_thread(scraped, address)

    play(scene)


def test_samples_of_a_loop_are_read_on_it() -> None:
    async def scene() -> None:
        here = threading.get_ident()
        read_on = []

        def read() -> Iterable[ExportedSample]:
            read_on.append(threading.get_ident())
            return some()

        async with exporting(ANY, METRICS, on_loop(read)) as address:
            await asyncio.to_thread(scraped, address)
        assert read_on == [here]

    play(scene)


def test_a_scrape_fails_while_the_loop_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "READ_S", 0.2)

    async def scene() -> None:
        read = on_loop(some)
        waiting = threading.Event()
        found: list[object] = []

        def other() -> None:
            try:
                found.append(read())
            except TimeoutError as error:
                found.append(error)
            waiting.set()

        thread = threading.Thread(target=other)
        thread.start()
        waiting.wait(DEADLINE_S)  # which holds the loop
        thread.join()
        assert [type(each) for each in found] == [TimeoutError]

    play(scene)
