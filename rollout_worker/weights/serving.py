"""What the engine may serve as, shared by the task that updates its weights and the task that samples with them.

The updater (engine_updater.py) says which policy requests may begin with, and which tokens are in doubt. The sampler
(episodes/sampler.py) asks before it begins a request, and again before it uses a result:

    while new weights are written    every result is in doubt, because a write may fail half-way
    while a version is checked       results with a token of that version are in doubt; the others are not
    the write or the check failed    what was under way or in doubt is *condemned*: it is thrown away, and its leases
                                     are generated again once the engine is proven. They are not reported as failed:
                                     the samples are not at fault, and a failure counts against a sample
    a new fork                       requests of the old one end, and nothing begins until the swap is written

A version is *proven* when its check has passed, or when it was written into a proven engine and no check is due (its
digest was proven in the host copy). So no token of a version that failed its check leaves the worker.

Only `verdict` and `changed` wait. The object does no I/O, and belongs to one event loop.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun


@dataclass(slots=True, eq=False)
class ServedRequest:
    """A request that the engine has, or whose result waits for a verdict.

    `is_condemned`: its result must not be used.
    """

    request_id: str
    fork: int
    is_condemned: bool = False


class Serving:
    """The engine's present right to serve."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._is_writing = False
        self._in_doubt: Policy | None = None
        self._requests: dict[str, ServedRequest] = {}
        self._changed = asyncio.Event()

    # ---- asked by the sampler -------------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy | None:
        """Policy with which requests may begin; None if none may."""
        return self._policy

    @contextmanager
    def request(self, request_id: str, fork: int) -> Iterator[ServedRequest]:
        """Register a request until its result is used or thrown away."""
        request = self._requests[request_id] = ServedRequest(request_id, fork)
        try:
            yield request
        finally:
            del self._requests[request_id]

    async def changed(self) -> None:
        """Return after the next change of what may begin or is in doubt."""
        await self._changed.wait()

    async def verdict(self, request: ServedRequest, runs: Sequence[PolicyRun]) -> bool:
        """Wait until no token of a result is in doubt, and return whether the result may be used."""
        while not request.is_condemned and self._doubts(runs):
            await self._changed.wait()
        return not request.is_condemned

    def _doubts(self, runs: Sequence[PolicyRun]) -> bool:
        return self._is_writing or any(run.policy == self._in_doubt for run in runs)

    # ---- said by the updater --------------------------------------------------------------------------------------

    def leave_fork(self, fork: int) -> tuple[str, ...]:
        """Let nothing begin, and return the requests of forks before `fork`, which are to be aborted."""
        self._policy = None
        return tuple(request.request_id for request in self._requests.values() if request.fork < fork)

    def writing(self) -> None:
        """Doubt every result until `written` or `condemn`."""
        self._is_writing = True

    def written(self, policy: Policy, *, may_serve: bool, in_doubt: bool) -> None:
        """Note that the engine holds `policy`.

        `may_serve`: requests may begin. `in_doubt`: it is checked next, until `sound` or `condemn`.
        """
        self._is_writing = False
        self._in_doubt = policy if in_doubt else None
        self._policy = policy if may_serve else None
        self._tell()

    def sound(self, policy: Policy) -> None:
        """Note that the engine holds `policy` and has passed its check."""
        self.written(policy, may_serve=True, in_doubt=False)

    def condemn(self) -> tuple[str, ...]:
        """Let nothing begin, and condemn all requests. Return those requests, which are to be aborted."""
        self._policy = self._in_doubt = None
        self._is_writing = False
        for request in self._requests.values():
            request.is_condemned = True
        self._tell()
        return tuple(self._requests)

    def _tell(self) -> None:
        # Everybody who waits looks again; who waits later waits for the next change.
        self._changed.set()
        self._changed = asyncio.Event()
