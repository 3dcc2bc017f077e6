"""Certificate requests of trainers in this region, from the request to the coordinator's answer.

A trainer signs the weights that it publishes, and readers accept its key only with a certificate from the coordinator.
The agent forwards the trainer's request over its session with the coordinator. A request stays open as long as its
trainer waits: it is sent at once, and again at the beginning of each session, because an earlier session may have ended
before the answer came. That is harmless, since the coordinator gives the same answer to the same request.

A trainer whose connection broke asks again with the same key. It gets the certificate that it was given before, at once
and also while the coordinator is away. A refusal is not kept.
"""

import asyncio
from collections.abc import Callable

from periplus.pb.v1 import control_pb2

ANSWER_DEADLINE_S = 300.0
"""Seconds until a request without an answer is refused. The coordinator ordered this trainer a moment ago, so it is
probably restarting; outages of minutes must be survived. Chosen by hand.
"""

CERTIFICATES_KEPT = 1024
"""Certificates that are kept, of about 300 bytes each; the oldest goes first. Chosen by hand, far above the number of
trainers that run in one region."""

_Request = tuple[str, int, bytes]
"""Job id, fork and the trainer's public key."""


class CertificateRequests:
    """Certificate requests without an answer yet, and the certificates that were given.

    `coordinator` is the coordinator's address, which refusals name. `send` queues a message for the coordinator.
    """

    def __init__(self, coordinator: str, send: Callable[[control_pb2.AgentMessage], None]) -> None:
        self._coordinator = coordinator
        self._send = send
        self._waiting: dict[asyncio.Future[control_pb2.CertificateAnswer], _Request] = {}
        self._given: dict[_Request, control_pb2.CertificateAnswer] = {}

    def unanswered(self) -> list[control_pb2.AgentMessage]:
        """Return a message for each open request, to be sent when a new session begins."""
        return [_to_pb(request) for request in self._waiting.values()]

    async def ask(self, job_id: str, fork: int, public_key: bytes) -> control_pb2.CertificateAnswer:
        """Return the coordinator's answer, or after `ANSWER_DEADLINE_S` a refusal that says that no answer came."""
        request = (job_id, fork, public_key)
        if (given := self._given.get(request)) is not None:
            return given
        answer: asyncio.Future[control_pb2.CertificateAnswer] = asyncio.get_running_loop().create_future()
        # Noted before it is sent, since a session that begins meanwhile sends all that is noted.
        self._waiting[answer] = request
        self._send(_to_pb(request))
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                return self._kept(request, await answer)
        except TimeoutError:
            refused = (
                f"the coordinator at {self._coordinator} did not certify the trainer within {ANSWER_DEADLINE_S:.0f} s; "
                "check that it runs and that this region can reach it, then resume the job"
            )
            return control_pb2.CertificateAnswer(job_id=job_id, fork=fork, refused=refused)
        finally:
            del self._waiting[answer]

    def _kept(self, request: _Request, answer: control_pb2.CertificateAnswer) -> control_pb2.CertificateAnswer:
        if not answer.refused:
            self._given[request] = answer
        if len(self._given) > CERTIFICATES_KEPT:
            del self._given[next(iter(self._given))]
        return answer

    def answered(self, answer: control_pb2.CertificateAnswer) -> None:
        """Hand an answer to the requests that wait for it.

        A certificate answers the requests with its job, fork and key. A refusal names no key, so it answers every
        request of its job and fork.
        """
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
