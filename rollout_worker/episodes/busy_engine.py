"""An engine that counts the seconds in which it has at least one request under way."""

from collections.abc import Callable

from periplus import clock
from rollout_worker.engines.engine import Completion, Engine, SampleRequest
from rollout_worker.engines.engine_around import EngineAround


class BusyEngine(EngineAround):
    """Fulfils `Engine` with another engine, and counts while requests are under way there. `now_s` is monotonic.

    Requests of evaluations count as well. Probes and checks of the weights are no requests.
    """

    def __init__(self, engine: Engine, now_s: Callable[[], float] = clock.monotonic_s) -> None:
        super().__init__(engine)
        self._now_s = now_s
        self._counted_s = 0.0
        self._num_under_way = 0
        self._is_suspended = False
        self._since_s = 0.0  # when the first of the requests under way began

    @property
    def busy_s(self) -> float:
        """Seconds until now in which a request was under way and the engine was not suspended."""
        counts = self._num_under_way and not self._is_suspended
        return self._counted_s + (self._now_s() - self._since_s if counts else 0.0)

    async def suspend(self) -> None:
        await super().suspend()
        self._counted_s, self._is_suspended = self.busy_s, True

    async def resume(self) -> None:
        await super().resume()
        self._since_s, self._is_suspended = self._now_s(), False

    async def submit(self, request: SampleRequest) -> Completion:
        if not self._num_under_way:
            self._since_s = self._now_s()
        self._num_under_way += 1
        try:
            return await self._engine.submit(request)
        finally:
            if self._num_under_way == 1:
                self._counted_s = self.busy_s
            self._num_under_way -= 1
