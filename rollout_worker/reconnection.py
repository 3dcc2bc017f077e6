"""Decides how long a worker keeps opening a stream that breaks again and again. Pure.

An *outage* begins when a stream breaks. Attempts that break at once belong to the same outage; a stream that lasted for
longer than `STABLE_S` ends it. A worker gives up when an outage has lasted for more than `GATEWAY_TIMEOUT_S`: its
process ends, and its agent starts another one.
"""

GATEWAY_TIMEOUT_S = 60.0
"""Seconds that a worker keeps trying to reach its gateway. An agent's restart takes less; a person would not wait
longer. Chosen by hand.
"""

RETRY_S = 0.5
"""Seconds before a lost stream is opened again. Chosen by hand."""

STABLE_S = 5.0
"""Seconds after which a stream that breaks was not part of the outage before it. Chosen by hand, longer than it takes
to connect and to be turned away.
"""


class Outage:
    """The present outage of one stream, if there is one."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def broke(self, *, opened_s: float, now_s: float) -> bool:
        """Note that the stream that was opened at `opened_s` has broken; return whether to give up."""
        # A stream that lasted has ended the outage before it; this is a new one.
        if self._since_s is None or now_s - opened_s > STABLE_S:
            self._since_s = now_s
        return now_s - self._since_s > GATEWAY_TIMEOUT_S
