import asyncio

from periplus.values.transport_keys import FrameKey
from region_agent.gateway.outgoing import FRAMES_AHEAD, UP_MESSAGES, Outgoing


def key(sequence: int) -> FrameKey:
    return FrameKey(worker_id="w", epoch=1, sequence=sequence)


async def drained(outgoing: Outgoing[str]) -> list[str]:
    items = [await outgoing.get() for _ in range(len(outgoing))]
    return [str(item.sequence) if isinstance(item, FrameKey) else item for item in items]


def test_messages_and_frames_leave_in_the_order_in_which_they_came() -> None:
    async def scene() -> None:
        outgoing = Outgoing[str]()
        await outgoing.put("hello")
        outgoing.put_frame(key(0))
        await outgoing.put("gone")
        outgoing.put_frame(key(1))
        assert await drained(outgoing) == ["hello", "0", "gone", "1"]

    asyncio.run(scene())


def test_a_backlog_of_frames_holds_up_messages_by_a_bounded_number_only() -> None:
    async def scene() -> None:
        outgoing = Outgoing[str]()
        for sequence in range(10 * FRAMES_AHEAD):
            outgoing.put_frame(key(sequence))
        await outgoing.put("urgent")
        left = await drained(outgoing)
        assert left.index("urgent") == FRAMES_AHEAD
        left.remove("urgent")
        assert left == [str(sequence) for sequence in range(10 * FRAMES_AHEAD)]

    asyncio.run(scene())


def test_who_puts_one_message_too_many_waits_until_one_has_left() -> None:
    async def scene() -> None:
        outgoing = Outgoing[str]()
        for number in range(UP_MESSAGES):
            await outgoing.put(str(number))
        outgoing.put_frame(key(0))
        waiting = [asyncio.create_task(outgoing.put(late)) for late in ("lost", "hello")]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        await outgoing.get()
        await waiting[0]
        assert not waiting[1].done()
        left = await drained(outgoing)
        await waiting[1]
        left += await drained(outgoing)
        assert left[-2:] == ["lost", "hello"], "who waited longer goes first"

    asyncio.run(scene())


def test_a_cleared_queue_forgets_those_who_wait_and_takes_what_comes_then() -> None:
    async def scene() -> None:
        outgoing = Outgoing[str]()
        for number in range(UP_MESSAGES):
            await outgoing.put(str(number))
        stale = [asyncio.create_task(outgoing.put("of the connection before")) for _ in range(3)]
        await asyncio.sleep(0)
        outgoing.clear()
        fresh = asyncio.create_task(outgoing.put("hello"))
        await asyncio.gather(*stale, fresh)
        assert await drained(outgoing) == ["hello"]

    asyncio.run(scene())


def test_a_new_connection_up_sends_each_frame_once_behind_the_messages_that_wait() -> None:
    async def scene() -> None:
        outgoing = Outgoing[str]()
        for sequence in range(FRAMES_AHEAD + 5):
            outgoing.put_frame(key(sequence))
        await outgoing.put("hello")
        outgoing.send_again([key(7), key(99)])
        assert await drained(outgoing) == ["hello", "7", "99"]
        outgoing.send_again([key(1)])
        assert await drained(outgoing) == ["1"]

    asyncio.run(scene())


def test_who_waits_for_something_gets_it() -> None:
    async def scene() -> None:
        outgoing = Outgoing[str]()
        waiting = asyncio.create_task(outgoing.get())
        await asyncio.sleep(0)
        outgoing.put_frame(key(3))
        assert await waiting == key(3)

    asyncio.run(scene())


def test_a_request_is_put_though_there_is_no_room_for_messages() -> None:
    async def scene() -> None:
        outgoing = Outgoing[str]()
        for _ in range(UP_MESSAGES):
            await outgoing.put("m")
        outgoing.put_request("request")
        assert (await drained(outgoing))[-1] == "request"

    asyncio.run(scene())
