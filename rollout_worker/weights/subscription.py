"""What a reader asks for next, given what came of what it asked for before. Pure.

    refused by a signature, an order or a decoder     the host copy is as it was: ask again from what it has;
                                                      if it was a gateway's own making, for the trainer's alone;
                                                      refused again: from nothing
    the weights are not those that were signed        the host copy is lost: the trainer's full state
    the engine is not what was proven                 written anew from the host copy; if that does not help, or the
                                                      copy is lost too, the trainer's full state

Each success ends what it disproves. Three failures of one kind in a row are not the network's, and no more are
`REFUSALS_IN_A_ROW` refusals: memory or build are broken, here or where the weights come from, and the process ends, so
that its agent and a person learn of it.
"""

from dataclasses import dataclass, replace

REFUSALS_BEFORE_ANEW = 2
"""The first may be what was under way when the gateway restarted."""

FAILURES_IN_A_ROW = 3

REFUSALS_IN_A_ROW = 120
"""A minute of refusals that come at once (app.py ends then too) and hours of those that follow a long transfer: by then
no restart of a trainer or a gateway has helped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """`distrust`: only what the trainer signed; `num_`: in a row."""

    distrust: bool = False
    num_refused: int = 0
    num_mismatches: int = 0
    num_engine_faults: int = 0

    @property
    def asks_from_nothing(self) -> bool:
        """Even if the host copy has a version."""
        return self.num_refused >= REFUSALS_BEFORE_ANEW

    @property
    def hopeless(self) -> str:
        """Why this process should end; empty if it should not."""
        if self.num_mismatches >= FAILURES_IN_A_ROW:
            return f"{self.num_mismatches} versions in a row did not lead to the weights that were signed"
        if self.num_engine_faults >= FAILURES_IN_A_ROW:
            return f"the engine failed its check {self.num_engine_faults} times in a row, freshly written each time"
        if self.num_refused >= REFUSALS_IN_A_ROW:
            return f"what came was refused {self.num_refused} times in a row"
        return ""

    def proven(self) -> "SubscriptionState":
        """A version came, and the host copy is what was signed."""
        return SubscriptionState(num_engine_faults=self.num_engine_faults)

    def refused(self, *, derived: bool) -> "SubscriptionState":
        """A record was no good."""
        return replace(self, num_refused=self.num_refused + 1, distrust=self.distrust or derived)

    def mismatched(self) -> "SubscriptionState":
        """The host copy is not what was signed."""
        return replace(self, num_mismatches=self.num_mismatches + 1, distrust=True)

    def engine_failed(self) -> "SubscriptionState":
        """The engine could not be repaired from the host copy."""
        return replace(self, num_engine_faults=self.num_engine_faults + 1, distrust=True)

    def engine_sound(self) -> "SubscriptionState":
        """The engine holds what it should, and computes with it."""
        return replace(self, num_engine_faults=0)
