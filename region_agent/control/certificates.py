"""Certificates that trainers of this region have asked for, from the request to the coordinator's answer.

A request is on its way as long as its trainer waits: it goes up at once, and again at the beginning of each session,
since the one that took it may have ended before the answer came. The coordinator answers the same request alike.
"""

import asyncio
from collections.abc import Callable

from periplus.pb.v1 import control_pb2

ANSWER_DEADLINE_S = 300.0
"""For a coordinator that is away: it ordered this trainer a moment ago, and outages of minutes are to be survived."""

_Request = tuple[str, int, bytes]


class CertificateRequests:
    """What is asked and not answered yet. `coordinator`: its address, to be named to who waited in vain."""

    def __init__(self, coordinator: str, send: Callable[[control_pb2.AgentMessage], None]) -> None:
        self._coordinator = coordinator
        self._send = send
        self._waiting: dict[asyncio.Future[control_pb2.CertificateAnswer], _Request] = {}

    def unanswered(self) -> list[control_pb2.AgentMessage]:
        """All that wait, for a session that begins."""
        return [_to_pb(request) for request in self._waiting.values()]

    async def ask(self, job_id: str, fork: int, public_key: bytes) -> control_pb2.CertificateAnswer:
        """The coordinator's answer, or after `ANSWER_DEADLINE_S` a refusal that says that none came."""
        request = (job_id, fork, public_key)
        answer: asyncio.Future[control_pb2.CertificateAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[answer] = request
        self._send(_to_pb(request))
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                return await answer
        except TimeoutError:
            refused = (
                f"the coordinator at {self._coordinator} did not certify the trainer within {ANSWER_DEADLINE_S:.0f} s; "
                "see that it runs and that this region reaches it, then resume the job"
            )
            return control_pb2.CertificateAnswer(job_id=job_id, fork=fork, refused=refused)
        finally:
            del self._waiting[answer]

    def answered(self, answer: control_pb2.CertificateAnswer) -> None:
        """The coordinator has spoken. A refusal names no key and is for every request of its fork."""
        for waiting, (job_id, fork, public_key) in self._waiting.items():
            is_for = (job_id, fork) == (answer.job_id, answer.fork)
            is_for = is_for and (bool(answer.refused) or answer.certificate.public_key == public_key)
            if is_for and not waiting.done():
                waiting.set_result(answer)


def _to_pb(request: _Request) -> control_pb2.AgentMessage:
    job_id, fork, public_key = request
    return control_pb2.AgentMessage(
        certify=control_pb2.CertificateRequest(job_id=job_id, fork=fork, public_key=public_key)
    )
