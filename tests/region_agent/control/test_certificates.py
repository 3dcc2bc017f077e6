"""A trainer's certificate request gets the coordinator's answer, or a refusal that says that none came."""

import asyncio

import pytest

from periplus.pb.v1 import common_pb2, control_pb2
from region_agent.control import certificates
from region_agent.control.certificates import CertificateRequests
from tests.support.gateway.loopback import play

KEY, OTHER_KEY = b"k" * 32, b"l" * 32


def certified(fork: int, key: bytes) -> control_pb2.CertificateAnswer:
    certificate = common_pb2.Certificate(job_id="j", fork=fork, public_key=key)
    return control_pb2.CertificateAnswer(job_id="j", fork=fork, certificate=certificate)


def refused(fork: int) -> control_pb2.CertificateAnswer:
    return control_pb2.CertificateAnswer(job_id="j", fork=fork, refused="another key")


class RecordedRequests(CertificateRequests):
    """Keeps what it sends."""

    def __init__(self) -> None:
        self.sent: list[control_pb2.AgentMessage] = []
        super().__init__("coordinator:1", self.sent.append)

    async def asking(self, fork: int, key: bytes) -> "asyncio.Task[control_pb2.CertificateAnswer]":
        task = asyncio.create_task(self.ask("j", fork, key))
        await asyncio.sleep(0)
        return task


def test_a_question_goes_up_at_once_and_waits_for_its_own_answer() -> None:
    async def scene() -> None:
        requests = RecordedRequests()
        asking = await requests.asking(1, KEY)
        request = control_pb2.CertificateRequest(job_id="j", fork=1, public_key=KEY)
        assert requests.sent == requests.unanswered() == [control_pb2.AgentMessage(certify=request)]
        for answer in (certified(2, KEY), certified(1, OTHER_KEY), refused(0)):
            requests.answered(answer)
        await asyncio.sleep(0)
        assert not asking.done()
        requests.answered(certified(1, KEY))
        requests.answered(refused(1))
        assert await asking == certified(1, KEY)
        assert requests.unanswered() == []

    play(scene)


def test_a_refusal_is_an_answer() -> None:
    async def scene() -> None:
        requests = RecordedRequests()
        asking = await requests.asking(0, KEY)
        requests.answered(refused(0))
        assert (await asking).refused == "another key"

    play(scene)


def test_a_trainer_that_left_asks_no_more_and_the_next_one_gets_what_is_its_own() -> None:
    async def scene() -> None:
        requests = RecordedRequests()
        first, second = await requests.asking(0, KEY), await requests.asking(1, OTHER_KEY)
        first.cancel()
        await asyncio.wait({first})
        assert [request.certify.fork for request in requests.unanswered()] == [1]
        requests.answered(certified(0, KEY))
        requests.answered(certified(1, OTHER_KEY))
        assert await second == certified(1, OTHER_KEY)

    play(scene)


def test_a_trainer_that_connects_again_gets_its_certificate_again_and_nobody_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certificates, "CERTIFICATES_KEPT", 2)

    async def scene() -> None:
        requests = RecordedRequests()
        for fork in range(3):
            asking = await requests.asking(fork, KEY)
            requests.answered(certified(fork, KEY))
            await asking
        num_sent = len(requests.sent)
        assert await requests.ask("j", 2, KEY) == certified(2, KEY)
        assert len(requests.sent) == num_sent
        for fork, key in ((2, OTHER_KEY), (0, KEY)):
            asking = await requests.asking(fork, key)
            requests.answered(refused(fork))
            assert (await asking).refused
            (await requests.asking(fork, key)).cancel()
        assert len(requests.sent) == num_sent + 4, "a refusal is not kept"

    play(scene)


def test_who_waited_in_vain_is_told_so_and_by_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "ANSWER_DEADLINE_S", 0.01)

    async def scene() -> None:
        requests = RecordedRequests()
        answer = await requests.ask("j", 0, KEY)
        assert not answer.HasField("certificate")
        assert "coordinator:1 did not certify" in answer.refused
        assert requests.unanswered() == []

    play(scene)
