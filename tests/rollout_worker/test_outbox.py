import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.frame import CodecId, Frame
from periplus.values.transport_keys import KeyedFrame
from rollout_worker import outbox as outbox_module
from rollout_worker.outbox import OUT_FRAMES, OUT_MESSAGES, Outbox

EPOCH = 7


def frame(payload: bytes = b"x") -> Frame:
    return Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, payload)


def sequence_of(item: str | KeyedFrame) -> int:
    assert isinstance(item, KeyedFrame)
    assert (item.key.worker_id, item.key.epoch) == ("w", EPOCH)
    return item.key.sequence


async def written(outbox: Outbox[str], number: int) -> list[int | str]:
    """Return what goes over the stream: the numbers of frames, and other messages as they are."""
    items = [await outbox.next() for _ in range(number)]
    return [sequence_of(item) if isinstance(item, KeyedFrame) else item for item in items]


def test_what_was_not_acknowledged_is_sent_first_over_the_next_stream_and_other_messages_once() -> None:
    async def scene() -> None:
        outbox = Outbox[str]("w", EPOCH)
        for _ in range(2):
            await outbox.put("proof")
            await outbox.put_frame(frame())
        assert await written(outbox, 3) == ["proof", 0, "proof"]
        await outbox.put_frame(frame())
        outbox.begin()
        assert await written(outbox, 3) == [0, 1, 2]
        outbox.acknowledge(EPOCH, [1])
        outbox.acknowledge(EPOCH - 1, [0, 2])
        outbox.begin()
        outbox.begin()
        assert await written(outbox, 2) == [0, 2]
        outbox.acknowledge(EPOCH, [0, 1, 2, 3])
        await outbox.put_frame(frame())
        assert await written(outbox, 1) == [3]
        assert outbox.num_kept == 1

    asyncio.run(scene())


def test_a_frame_that_is_acknowledged_before_it_is_sent_again_is_passed_over() -> None:
    async def scene() -> None:
        outbox = Outbox[str]("w", EPOCH)
        await outbox.put_frame(frame())
        await outbox.put_frame(frame())
        await written(outbox, 2)
        outbox.begin()
        outbox.acknowledge(EPOCH, [0])
        assert await written(outbox, 1) == [1]

    asyncio.run(scene())


@pytest.mark.parametrize("bound", ["frames", "bytes", "messages"])
def test_who_puts_too_much_waits_until_there_is_room(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "OUT_BYTES", 100)

    async def scene() -> None:
        outbox = Outbox[str]("w", EPOCH)
        if bound == "frames":
            for _ in range(OUT_FRAMES):
                await outbox.put_frame(frame())
        elif bound == "bytes":
            await outbox.put_frame(frame(bytes(101)))
        else:
            for _ in range(OUT_MESSAGES):
                await outbox.put("proof")
        waiting = asyncio.create_task(outbox.put("proof") if bound == "messages" else outbox.put_frame(frame()))
        await asyncio.sleep(0)
        assert not waiting.done()
        if bound == "messages":
            await outbox.next()
        else:
            outbox.acknowledge(EPOCH, [0])
        await waiting

    asyncio.run(scene())


def test_an_epoch_is_never_zero() -> None:
    with pytest.raises(ValueError, match="epoch"):
        Outbox[str]("w", 0)


@given(st.lists(st.sampled_from(["put", "send", "deliver", "acknowledge", "break"]), max_size=60))
def test_over_a_link_that_breaks_anywhere_every_frame_arrives_and_none_is_invented(steps: list[str]) -> None:
    """`sent` is under way to the gateway, `acknowledged` under way back; both are lost when the link breaks."""

    async def scene() -> None:
        outbox = Outbox[str]("w", EPOCH)
        num_put, spooled = 0, set[int]()
        sent: list[int] = []
        acknowledged: list[int] = []

        async def step(what: str) -> None:
            nonlocal num_put
            match what:
                case "put" if num_put < OUT_FRAMES:
                    await outbox.put_frame(frame())
                    num_put += 1
                case "send":
                    try:
                        async with asyncio.timeout(0):
                            sent.append(sequence_of(await outbox.next()))
                    except TimeoutError:
                        pass
                case "deliver" if sent:
                    spooled.add(sent[0])
                    acknowledged.append(sent.pop(0))
                case "acknowledge" if acknowledged:
                    outbox.acknowledge(EPOCH, [acknowledged.pop(0)])
                case "break":
                    sent.clear()
                    acknowledged.clear()
                    outbox.begin()

        for what in [*steps, "break"]:
            await step(what)
        while outbox.num_kept:
            for what in ("send", "deliver", "acknowledge"):
                await step(what)
        assert spooled == set(range(num_put))

    asyncio.run(scene())


def test_who_waits_until_everything_is_written_goes_on_when_the_stream_asks_for_more() -> None:
    async def scene() -> None:
        outbox = Outbox[str]("w", EPOCH)
        await outbox.put("proof")
        waiting = asyncio.ensure_future(outbox.written())
        await outbox.next()
        await asyncio.sleep(0)
        assert not waiting.done(), "the message was handed out, and may still be on its way"
        reading = asyncio.ensure_future(outbox.next())
        await waiting
        await outbox.put("proof")
        await reading

    asyncio.run(scene())
