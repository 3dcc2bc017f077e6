"""The two gates of a strict staleness bound, in numbers of groups: what may be opened, and what may be taken.

The *class* of a group is the oldest version that one of its tokens may have. With bound eta, groups of class s may be
consumed by the steps up to s + eta, and each step takes `batch` groups. All open groups can still be consumed in time
if and only if for every s

    N(<= s) <= batch x (s + eta - next + 1)

where N counts open groups and `next` is the step whose batch is formed next. Source: `docs/design/0003-ledger.md`. For
a single class that starts now this is AReaL's admission rule, accepted + running < (eta + version + 1) x batch.
"""

from collections import Counter
from collections.abc import Sequence


class Window:
    """Number of open groups by class, and the step whose batch is formed next."""

    def __init__(self, *, batch: int, eta: int) -> None:
        self.batch = batch
        self.eta = eta
        self.next_step = 0
        self._open: Counter[int] = Counter()

    def room(self, version: int) -> int:
        """Return how many groups of that class may still be opened."""
        return self._slack(self._open, version, self.next_step)

    def open(self, version: int) -> None:
        """Open one more group of that class."""
        self._open[version] += 1

    def may_take(self, versions: Sequence[int]) -> bool:
        """Return whether a batch of groups of these classes leaves no group behind that would become too stale."""
        if any(version + self.eta < self.next_step for version in versions):
            return False
        # Groups that would still be open after the batch, running ones included.
        left = self._open - Counter(versions)
        # The next step would then be formed under the same inequality. Classes below the oldest open group have no
        # group to check.
        return not left or self._slack(left, min(left), self.next_step + 1) >= 0

    def take(self, versions: Sequence[int]) -> None:
        """Form a batch of groups of these classes."""
        for version in versions:
            self._close(version)
        self.next_step += 1

    def _close(self, version: int) -> None:
        self._open[version] -= 1
        if not self._open[version]:
            del self._open[version]

    def _slack(self, counts: Counter[int], version: int, next_step: int) -> int:
        """Return the least slack of the inequality over `version` and all newer classes."""
        least = None
        # Only classes with open groups can have less slack than the class before them.
        for at in (version, *(of for of in counts if of > version)):
            upto = sum(num for of, num in counts.items() if of <= at)
            slack = self.batch * (at + self.eta - next_step + 1) - upto
            least = slack if least is None else min(least, slack)
        assert least is not None
        return least
