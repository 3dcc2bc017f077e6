"""A hub's queues: who waits for whom, and what ends when."""

import asyncio

import pytest

from periplus.codec.frame import CodecId, Frame
from periplus.values.transport_keys import FrameKey, KeyedFrame
from region_agent.gateway import hub as hub_module
from region_agent.gateway.hub import JobHub
from region_agent.gateway.messages import (
    AnchorRequest,
    LocalCommit,
    LostWorker,
    RelayedCommit,
    RelayedDown,
    RelayedUp,
    ToAbove,
    UpKind,
)
from region_agent.gateway.outgoing import UP_MESSAGES
from region_agent.gateway.rollout_stream import DOWN_QUEUE_MESSAGES, TAKEN_FRAMES, RolloutStream
from tests.support.gateway.loopback import JOB, frame_spool, played, relayed, weight_cache


def new_hub() -> JobHub:
    return JobHub(JOB, "home", frame_spool(), weight_cache(), secret="")


async def stream_of(hub: JobHub, *worker_ids: str, region: str = "") -> RolloutStream:
    stream = hub.open_stream(region)
    for worker_id in worker_ids:
        await hub.take_up(stream, relayed(worker_id, UpKind.HELLO))
    return stream


def lease(worker_id: str, *, is_finish: bool = False) -> RelayedDown:
    return RelayedDown(worker_id=worker_id, is_finish=is_finish, payload=None)


def frame(sequence: int = 0, worker_id: str = "w") -> KeyedFrame:
    key = FrameKey(worker_id=worker_id, epoch=1, sequence=sequence)
    return KeyedFrame(key, Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, b"x"))


async def waiting_up(hub: JobHub) -> list[ToAbove]:
    return [await hub.next_up() for _ in range(len(hub.up))]


@played
async def test_a_stream_whose_worker_says_hello_on_another_one_ends_so_that_the_worker_connects_again() -> None:
    """Else nobody would hear what the worker still says there, and a job with no other worker would wait for ever."""
    hub = new_hub()
    first = await stream_of(hub, "w", "w")
    assert not first.is_ended
    second = await stream_of(hub, "w")
    assert first.is_ended
    assert not second.is_ended
    assert await hub.send_down(lease("w"))
    assert await second.next_down() == lease("w")


@played
async def test_who_waits_for_room_towards_a_stream_goes_on_when_it_ends() -> None:
    hub = new_hub()
    stream = await stream_of(hub, "w1")
    for _ in range(DOWN_QUEUE_MESSAGES):
        await hub.send_down(lease("w1"))
    waiting = asyncio.create_task(hub.send_down(lease("w1")))
    await asyncio.sleep(0)
    assert not waiting.done()
    await hub.close_stream(stream, "dead")
    await waiting
    assert await hub.send_down(lease("w1")) is False


@played
async def test_a_stream_that_is_not_read_is_ended_and_holds_up_the_others_only_that_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_module, "DOWN_STALL_S", 0.05)
    hub = new_hub()
    stuck = await stream_of(hub, "stuck")
    await stream_of(hub, "well")
    for _ in range(DOWN_QUEUE_MESSAGES):
        assert await hub.send_down(lease("stuck"))
    for _ in range(1_000):
        assert not await hub.send_down(lease("stuck"))
    assert stuck.is_ended
    assert await hub.send_down(lease("well"))


@played
async def test_a_worker_that_reads_no_acknowledgement_is_not_read_on() -> None:
    hub = new_hub()
    stream = await stream_of(hub, "w")
    for _ in range(TAKEN_FRAMES):
        await hub.take_up(stream, frame())
    waiting = asyncio.create_task(hub.take_up(stream, frame()))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert len(await stream.next_taken()) == TAKEN_FRAMES
    await waiting


@played
async def test_a_worker_whose_stream_ended_is_reported_lost_unless_it_has_said_hello_again() -> None:
    hub = new_hub()
    old = await stream_of(hub, "w1", "w2", region="far")
    await stream_of(hub, "w2", region="far")
    assert len(await waiting_up(hub)) == 3
    await hub.close_stream(old, "its stream ended")
    lost = LostWorker(worker_id="w1", reason="its stream ended", connection_lost=True)
    assert await waiting_up(hub) == [lost]


@played
async def test_a_worker_whose_stream_ends_with_the_agent_is_not_reported_lost() -> None:
    """It may find the next agent, and would count as dead until then."""
    hub = new_hub()
    stream = await stream_of(hub, "w1")
    assert len(await waiting_up(hub)) == 1
    hub.end()
    await hub.close_stream(stream, "its stream ended")
    assert await waiting_up(hub) == []


@played
async def test_a_worker_that_says_hello_while_the_loss_of_its_stream_is_being_reported_is_not_lost() -> None:
    hub = new_hub()
    old = await stream_of(hub, "w1", "w2")
    while len(hub.up) < UP_MESSAGES:
        await hub.take_up(old, relayed("w1"))
    closing = asyncio.create_task(hub.close_stream(old, "its stream ended"))
    await asyncio.sleep(0)
    coming_back = asyncio.create_task(stream_of(hub, "w2"))
    await asyncio.sleep(0)
    went_up = []
    while not (closing.done() and coming_back.done()) or len(hub.up):
        went_up.append(await hub.next_up())
        await asyncio.sleep(0)
    lost = LostWorker(worker_id="w1", reason="its stream ended", connection_lost=False)
    assert went_up[-2:] == [lost, relayed("w2", UpKind.HELLO)]


@played
async def test_the_loss_of_a_worker_that_waits_for_room_is_not_overtaken_by_the_worker_s_next_hello() -> None:
    """Else the trainer would take a worker that has just come back for a lost one, and grant it no lease."""
    hub = new_hub()
    old = await stream_of(hub, "w")
    while len(hub.up) < UP_MESSAGES:
        await hub.take_up(old, relayed("w"))
    closing = asyncio.create_task(hub.close_stream(old, "its stream ended"))
    await asyncio.sleep(0)

    async def come_back_when_there_is_room() -> None:
        await hub.next_up()
        await stream_of(hub, "w")  # before the task that waits for room has woken

    coming_back = asyncio.create_task(come_back_when_there_is_room())
    await asyncio.sleep(0)
    went_up = []
    while not (closing.done() and coming_back.done()) or len(hub.up):
        went_up.append(await hub.next_up())
        await asyncio.sleep(0)
    lost = LostWorker(worker_id="w", reason="its stream ended", connection_lost=False)
    assert went_up[-2:] == [lost, relayed("w", UpKind.HELLO)]


@played
async def test_a_commit_frees_the_spool_here_or_goes_to_every_stream_of_the_region_that_has_the_frames() -> None:
    hub = new_hub()
    local, far = await stream_of(hub, "w"), await stream_of(hub, region="far")
    await hub.take_up(local, frame(0))
    await hub.take_up(local, frame(1))
    assert await hub.send_down(LocalCommit((frame(0).key,)))
    assert hub.frames.pending == (frame(1).key,)
    there = RelayedCommit(region="far", payload=None)
    assert await hub.send_down(there)
    assert await far.next_down() == there
    assert not await hub.send_down(RelayedCommit(region="nowhere", payload=None))
    assert hub.frames.pending == (frame(1).key,)


@played
async def test_a_lost_connection_up_ends_every_stream_and_keeps_only_what_is_in_the_spool() -> None:
    hub = new_hub()
    local, far = await stream_of(hub, "w"), await stream_of(hub, "v", region="far")
    await hub.take_up(local, frame())
    hub.feed.request_anchor("of a test", signed=False)
    hub.end_streams()
    assert local.is_ended
    assert far.is_ended
    assert not await hub.send_down(lease("w"))
    assert not hub.feed.anchor_requested
    assert len(hub.up) == 0
    await hub.close_stream(local, "its stream ended")
    hub.resend_uncommitted()
    assert await waiting_up(hub) == [frame()], "nobody is reported lost over the new connection"


@played
async def test_a_first_trainer_hears_what_waited_for_it_and_the_next_one_hears_every_worker_anew() -> None:
    hub = new_hub()
    stream = await stream_of(hub, "w")
    await hub.take_up(stream, frame())
    first = hub.claim_trainer(0, "peer")
    hello = relayed("w", UpKind.HELLO)
    assert await waiting_up(hub) == [hello, frame()]
    assert not stream.is_ended
    hub.trainer_slot.release(first)
    hub.claim_trainer(0, "peer")
    assert stream.is_ended
    assert await waiting_up(hub) == [frame()]


@played
async def test_an_anchor_is_requested_once_and_again_over_the_next_connection() -> None:
    hub = new_hub()
    for _ in range(3):
        hub.feed.request_anchor("of a test", signed=False)
    assert await waiting_up(hub) == [AnchorRequest()]
    hub.end_streams()
    hub.feed.request_anchor("of a test", signed=False)
    assert await waiting_up(hub) == [AnchorRequest()]


@played
async def test_a_finish_to_anybody_says_that_the_job_is_done() -> None:
    hub = new_hub()
    await stream_of(hub, "w")
    await hub.send_down(lease("w"))
    assert not hub.job_is_done
    assert not await hub.send_down(lease("nobody", is_finish=True))
    await hub.send_down(lease("w"))
    assert hub.job_is_done


@played
async def test_what_a_worker_says_goes_up_as_it_came() -> None:
    hub = new_hub()
    stream = await stream_of(hub, "w")
    said = RelayedUp(worker_id="w", kind=UpKind.OTHER, payload=object())
    await hub.take_up(stream, said)
    assert (await waiting_up(hub))[-1] is said
