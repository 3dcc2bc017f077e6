"""Who is routed where, who may speak for whom, and who is reported lost, over any course of events."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.frame import CodecId, Frame
from periplus.errors import WireError
from periplus.values.transport_keys import FrameKey, KeyedFrame
from region_agent.gateway.messages import LostWorker, RelayedUp, UpKind
from region_agent.gateway.routes import EndStream, ForwardUp, GreetedWorkers, RouteEffect, Routes, SpoolFrame, StreamId
from tests.support.gateways import relayed

SPEECH = (UpKind.GONE, UpKind.OTHER)
"""Kinds that only the stream of a worker's route may say."""


def own_frame(worker_id: str) -> KeyedFrame:
    key = FrameKey(worker_id=worker_id, epoch=1, sequence=0)
    return KeyedFrame(key, Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, b"x"))


def hello(routes: Routes, stream_id: StreamId, worker_id: str) -> Sequence[RouteEffect]:
    return routes.take(stream_id, relayed(worker_id, UpKind.HELLO))


def lost(worker_id: str, *, connection_lost: bool = False) -> LostWorker:
    return LostWorker(worker_id=worker_id, reason="ended", connection_lost=connection_lost)


def test_a_hello_makes_a_route_and_goes_up_and_a_repeated_one_ends_nothing() -> None:
    routes = Routes()
    stream = routes.open("")
    for _ in range(2):
        assert hello(routes, stream, "w") == [ForwardUp(relayed("w", UpKind.HELLO))]
    assert routes.stream_of("w") == stream
    assert routes.num_workers(stream) == 1


def test_a_hello_over_another_stream_moves_the_worker_and_ends_the_stream_before_it_goes_up() -> None:
    routes = Routes()
    old, new = routes.open("far"), routes.open("")
    hello(routes, old, "w")
    hello(routes, old, "v")
    assert hello(routes, new, "w") == [EndStream(old, "w"), ForwardUp(relayed("w", UpKind.HELLO))]
    assert routes.stream_of("w") == new
    assert routes.close(old, "ended") == [lost("v", connection_lost=True)], "w is well"


@pytest.mark.parametrize("worker_id", ["", "w" * 257, "é" * 129])
def test_a_worker_with_an_id_that_no_trajectory_may_have_is_refused_when_it_says_hello(worker_id: str) -> None:
    routes = Routes()
    stream = routes.open("")
    with pytest.raises(WireError, match="an id has 1 to 256"):
        hello(routes, stream, worker_id)
    assert routes.stream_of(worker_id) is None
    assert hello(routes, stream, "é" * 128)


@pytest.mark.parametrize("kind", SPEECH)
def test_nobody_speaks_for_a_worker_that_did_not_say_hello_over_the_stream(kind: UpKind) -> None:
    routes = Routes()
    here, elsewhere = routes.open(""), routes.open("")
    hello(routes, here, "w")
    assert routes.take(elsewhere, relayed("w", kind)) == []
    assert routes.stream_of("w") == here
    assert routes.take(here, relayed("w", kind)) == [ForwardUp(relayed("w", kind))]


def test_a_frame_of_this_region_is_spooled_only_for_a_worker_of_the_stream() -> None:
    routes = Routes()
    here, elsewhere = routes.open(""), routes.open("")
    hello(routes, here, "w")
    assert routes.take(here, own_frame("w")) == [SpoolFrame(own_frame("w"))]
    assert routes.take(elsewhere, own_frame("w")) == []
    assert routes.take(here, own_frame("stranger")) == []


def test_a_frame_of_another_region_goes_up_though_its_worker_has_gone() -> None:
    routes = Routes()
    far = routes.open("far")
    assert routes.take(far, relayed("w", UpKind.FRAME)) == [ForwardUp(relayed("w", UpKind.FRAME))]


def test_the_hello_of_a_remote_gateway_goes_no_further() -> None:
    routes = Routes()
    far = routes.open("far")
    assert routes.take(far, relayed("", UpKind.GATEWAY)) == []
    assert routes.streams_to("far") == [far]


def test_a_worker_that_has_left_is_not_reported_lost() -> None:
    routes = Routes()
    stream = routes.open("")
    hello(routes, stream, "w")
    routes.take(stream, relayed("w", UpKind.GONE))
    assert routes.stream_of("w") is None
    assert routes.close(stream, "ended") == []


@pytest.mark.parametrize("region", ["", "far"])
def test_a_lost_gateway_is_told_from_a_worker_whose_own_stream_ended(region: str) -> None:
    routes = Routes()
    stream = routes.open(region)
    hello(routes, stream, "w")
    assert routes.close(stream, "ended") == [lost("w", connection_lost=bool(region))]


def test_a_commit_is_told_to_each_open_stream_of_its_region() -> None:
    routes = Routes()
    broken, local, new = routes.open("far"), routes.open(""), routes.open("far")
    assert routes.streams_to("far") == [broken, new]
    routes.close(broken, "ended")
    assert routes.streams_to("far") == [new]
    assert routes.streams_to("nowhere") == []
    assert local not in routes.streams_to("far")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "hello", "hello", "say", "gone", "close", "forget"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 3),
    ),
    max_size=60,
)


@given(STEPS)
def test_a_worker_has_one_route_the_newest_and_each_loss_is_reported_once(
    steps: list[tuple[str, str, int]],
) -> None:
    """A model that knows only the newest hello of each worker agrees with the routes after each step."""
    routes = Routes()
    is_open: list[StreamId] = []
    newest: dict[str, StreamId] = {}  # the model: over which stream each worker said hello last
    for what, worker_id, place in steps:
        if what == "open" or not is_open:
            is_open.append(routes.open("far" if place % 2 else ""))
            continue
        stream = is_open[place % len(is_open)]
        match what:
            case "hello":
                effects = hello(routes, stream, worker_id)
                ended = [effect.stream_id for effect in effects if isinstance(effect, EndStream)]
                assert ended == [previous for previous in [newest.get(worker_id)] if previous not in (None, stream)]
                assert effects[-1] == ForwardUp(relayed(worker_id, UpKind.HELLO))
                newest[worker_id] = stream
            case "say" | "gone":
                message = relayed(worker_id, UpKind.OTHER if what == "say" else UpKind.GONE)
                is_heard = newest.get(worker_id) == stream
                assert routes.take(stream, message) == [ForwardUp(message)] * is_heard
                if is_heard and what == "gone":
                    del newest[worker_id]
            case "close":
                is_open.remove(stream)
                expected = sorted(worker_id for worker_id, route in newest.items() if route == stream)
                assert [report.worker_id for report in routes.close(stream, "ended")] == expected
                newest = {worker_id: route for worker_id, route in newest.items() if route != stream}
            case "forget":
                routes.forget_workers()
                newest.clear()
        assert {worker_id: routes.stream_of(worker_id) for worker_id in "abc"} == {
            worker_id: newest.get(worker_id) for worker_id in "abc"
        }
        assert sum(routes.num_workers(each) for each in is_open) == len(newest)


# ---- over one connection up ------------------------------------------------------------------------------------------


def test_frames_pass_any_connection_and_other_messages_only_after_a_hello_over_it() -> None:
    greeted = GreetedWorkers()
    assert greeted.lets_pass(own_frame("w"))
    assert greeted.lets_pass(relayed("w", UpKind.FRAME))
    assert not greeted.lets_pass(relayed("w"))
    assert greeted.lets_pass(relayed("w", UpKind.HELLO))
    assert greeted.lets_pass(relayed("w"))
    assert not greeted.lets_pass(relayed("v"))


@pytest.mark.parametrize("farewell", [relayed("w", UpKind.GONE), lost("w")])
def test_the_end_of_a_worker_passes_once_and_only_after_its_hello(farewell: RelayedUp | LostWorker) -> None:
    greeted = GreetedWorkers()
    assert not greeted.lets_pass(farewell)
    greeted.lets_pass(relayed("w", UpKind.HELLO))
    assert greeted.lets_pass(farewell)
    assert not greeted.lets_pass(farewell)
    assert not greeted.lets_pass(relayed("w"))


@given(st.lists(st.tuples(st.sampled_from(list(UpKind)), st.sampled_from(["a", "b"])), max_size=40))
def test_what_passes_is_what_the_routes_at_the_other_end_do_not_drop(said: list[tuple[UpKind, str]]) -> None:
    """One connection up is one stream of the home gateway, so nothing that is sent is sent in vain."""
    greeted, home = GreetedWorkers(), Routes()
    stream = home.open("far")
    for kind, worker_id in said:
        message = relayed(worker_id, kind)
        if kind is not UpKind.GATEWAY and greeted.lets_pass(message):
            assert home.take(stream, message) == [ForwardUp(message)]
