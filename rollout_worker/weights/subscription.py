"""Decides the next request of a worker's reader, from the failures of its earlier ones. Pure.

    failure                                  state of the host copy      the next request
    a record is refused (signature, order,   unchanged                   from the host copy's version; only signed
    decoder)                                                             publications if a derived one was refused;
                                                                         after another refusal from nothing
    the weights lack the signed digest       lost                        the trainer's full state
    the engine fails its check               written into the engine     none if that helps, else the trainer's full
                                             again                       state

A success clears the counts of the failures that it disproves. `FAILURES_IN_A_ROW` mismatches or failed checks are not
the network's fault, and neither are `REFUSALS_IN_A_ROW` refusals: memory or build are broken, here or where the weights
come from. Then the process ends, so that its agent and an operator learn of it.
"""

from dataclasses import dataclass, replace

from periplus.values.policy import Policy

REFUSALS_BEFORE_ANEW = 2
"""Refusals in a row after which the reader asks from nothing. A single one may be a transfer that a restart of the
gateway interrupted. Chosen by hand.
"""

FAILURES_IN_A_ROW = 3
"""Mismatches, or failed checks of the engine, in a row after which the process ends. Chosen by hand."""

REFUSALS_IN_A_ROW = 120
"""Refusals in a row after which the process ends. They take a minute if they come at once (RETRY_S of reconnection.py
lies between them), and hours if each follows a long transfer. By then no restart of a trainer or gateway has helped.
Chosen by hand.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRequest:
    """What a reader asks for.

    `have` is the version of its host copy, or None. With `distrusts_copies` it accepts only what the trainer signed.
    """

    have: Policy | None
    has_bundle: bool
    distrusts_copies: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """Failures so far. `distrust`: accept only what the trainer signed. `num_` counts failures in a row."""

    distrust: bool = False
    num_refused: int = 0
    num_mismatches: int = 0
    num_engine_faults: int = 0

    @property
    def asks_from_nothing(self) -> bool:
        """Whether the next subscription ignores the version of the host copy."""
        return self.num_refused >= REFUSALS_BEFORE_ANEW

    def request(self, have: Policy | None, *, has_bundle: bool) -> SubscriptionRequest:
        """Return the next request of a reader whose host copy has the version `have`."""
        return SubscriptionRequest(have=have, has_bundle=has_bundle, distrusts_copies=self.distrust)

    @property
    def hopeless(self) -> str:
        """Why this process should end; empty if it should go on."""
        if self.num_mismatches >= FAILURES_IN_A_ROW:
            return f"{self.num_mismatches} versions in a row did not lead to the weights that were signed"
        if self.num_engine_faults >= FAILURES_IN_A_ROW:
            return f"the engine failed its check {self.num_engine_faults} times in a row, freshly written each time"
        if self.num_refused >= REFUSALS_IN_A_ROW:
            return f"what came was refused {self.num_refused} times in a row"
        return ""

    def proven(self) -> "SubscriptionState":
        """Return the state after a version was proven in the host copy."""
        return SubscriptionState(num_engine_faults=self.num_engine_faults)

    def refused(self, *, derived: bool) -> "SubscriptionState":
        """Return the state after a record was refused. `derived`: its publication was made by a gateway."""
        return replace(self, num_refused=self.num_refused + 1, distrust=self.distrust or derived)

    def mismatched(self) -> "SubscriptionState":
        """Return the state after the host copy did not get the signed digest."""
        return replace(self, num_mismatches=self.num_mismatches + 1, distrust=True)

    def engine_failed(self) -> "SubscriptionState":
        """Return the state after the engine could not be repaired from the host copy."""
        return replace(self, num_engine_faults=self.num_engine_faults + 1, distrust=True)

    def engine_sound(self) -> "SubscriptionState":
        """Return the state after the engine passed its check."""
        return replace(self, num_engine_faults=0)
