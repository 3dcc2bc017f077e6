"""What the subscription and the engine's updater share: the host copy, what is proven in it, and the failures so far.

The subscription (reader.py) brings versions into the host copy while the engine generates. The updater
(engine_updater.py) writes them into the engine between two batches. Both note here what failed, and subscription.py
decides from that what to request next. Each method is one transition and returns at once; none takes the lock.

`host_lock` is held by whoever writes or hashes the host copy, or writes the engine from it. A thread that holds it is
never abandoned: when `again` is set, which asks for a new subscription, the present one ends only between two records.
"""

import asyncio

from periplus.errors import PeriplusError
from rollout_worker.weights.host_copy import HostCopy
from rollout_worker.weights.pending_versions import PendingVersions, Version
from rollout_worker.weights.subscription import SubscriptionState


class ProvenWeights:
    """The weights of one worker on their way into its engine."""

    def __init__(self) -> None:
        self.host = HostCopy()
        self.host_lock = asyncio.Lock()
        self.pending = PendingVersions()
        self.failures = SubscriptionState()
        self.again = asyncio.Event()

    def raise_if_hopeless(self) -> None:
        """Raise a PeriplusError if the failures cannot be mended from here, so that the process ends."""
        if why := self.failures.hopeless:
            raise PeriplusError(f"{why}; memory or software is broken, here or at the trainer: see the log")

    # ---- noted by the subscription ---------------------------------------------------------------------------------

    def begin_anew(self) -> None:
        """Forget the version of the host copy, whose lock the caller holds: the next request asks from nothing."""
        self.host.forget()
        self.pending.host_is_lost()

    def proven(self, version: Version) -> None:
        """Add a version to which the host copy has just been brought."""
        self.failures = self.failures.proven()
        self.pending.add(version)

    def refused(self, *, is_derived: bool) -> None:
        """Count a record that was refused. `is_derived`: its publication was made by a gateway."""
        self.failures = self.failures.refused(derived=is_derived)

    def mismatched(self) -> None:
        """Note that the host copy did not get the signed digest, and has no version any more."""
        self.failures = self.failures.mismatched()
        self.pending.host_is_lost()

    # ---- noted by the engine's updater -----------------------------------------------------------------------------

    def engine_sound(self) -> None:
        """Note that the engine passed its check."""
        self.failures = self.failures.engine_sound()

    def engine_failed(self) -> None:
        """Note that the engine could not be repaired from the host copy: a full state of the trainer is needed."""
        self.failures = self.failures.engine_failed()
        self.again.set()
