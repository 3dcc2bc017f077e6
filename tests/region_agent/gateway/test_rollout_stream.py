"""The queues of one stream: what waits for room, and what is still written when it ends."""

import asyncio

from periplus.values.transport_keys import FrameKey
from region_agent.gateway.messages import RelayedDown, SpoolReceipt
from region_agent.gateway.rollout_stream import DOWN_QUEUE_MESSAGES, RolloutStream
from region_agent.gateway.routes import Routes
from tests.support.gateways import played

MESSAGE = RelayedDown(worker_id="w", is_finish=False, payload=None)


def new_stream() -> RolloutStream:
    return RolloutStream(Routes().open(""))


def key(sequence: int) -> FrameKey:
    return FrameKey(worker_id="w", epoch=1, sequence=sequence)


@played
async def test_a_stream_is_flushed_when_its_last_message_was_written_not_when_it_was_taken() -> None:
    stream = new_stream()
    await stream.put(MESSAGE)
    stream.end()
    await stream.until_ended()
    flushing = asyncio.create_task(stream.flushed())
    assert await stream.next_down() == MESSAGE
    await asyncio.sleep(0)
    assert not flushing.done()
    stream.written()
    await flushing


@played
async def test_who_waits_for_room_goes_on_when_the_queue_is_discarded() -> None:
    stream = new_stream()
    for _ in range(DOWN_QUEUE_MESSAGES):
        await stream.put(MESSAGE)
    waiting = asyncio.create_task(stream.put(MESSAGE))
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.discard()
    await waiting


@played
async def test_all_frames_taken_since_the_last_look_share_one_receipt() -> None:
    stream = new_stream()
    looking = asyncio.create_task(stream.next_taken())
    await asyncio.sleep(0)
    assert not looking.done()
    await stream.took(key(0))
    await stream.took(key(1))
    assert stream.num_taken == 2
    keys = await looking
    assert stream.num_taken == 0
    await stream.acknowledge(keys)
    assert await stream.next_down() == SpoolReceipt((key(0), key(1)))
