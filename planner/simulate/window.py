"""The two gates of a strict staleness bound: what may be opened, and what may be taken, in counts of groups.

A group's *class* is the oldest version that any of its tokens may have. With bound eta, class s may be consumed by the
steps up to s + eta, and a step takes `batch` groups. All that is open can still be consumed in time exactly if for
every s

    N(<= s) <= batch x (s + eta - next + 1)

where N counts open groups and `next` is the step whose batch is formed next. Source: `docs/design/0003-ledger.md`; for
one class that starts now it is AReaL's admission rule, accepted + running < (eta + version + 1) x batch.
"""

from collections import Counter
from collections.abc import Sequence


class Window:
    """Open groups by class, and which batch comes next."""

    def __init__(self, *, batch: int, eta: int) -> None:
        self.batch = batch
        self.eta = eta
        self.next_step = 0
        self._open: Counter[int] = Counter()

    def room(self, version: int) -> int:
        """Groups of that class that may still be opened."""
        return self._slack(self._open, version, self.next_step)

    def open(self, version: int) -> None:
        """One more group of that class."""
        self._open[version] += 1

    def may_take(self, versions: Sequence[int]) -> bool:
        """Whether a batch of these classes leaves nothing behind that would be too late."""
        if any(version + self.eta < self.next_step for version in versions):
            return False
        left = self._open - Counter(versions)
        return not left or self._slack(left, min(left), self.next_step + 1) >= 0

    def take(self, versions: Sequence[int]) -> None:
        """The batch is formed."""
        for version in versions:
            self._close(version)
        self.next_step += 1

    def _close(self, version: int) -> None:
        self._open[version] -= 1
        if not self._open[version]:
            del self._open[version]

    def _slack(self, counts: Counter[int], version: int, next_step: int) -> int:
        least = None
        for at in (version, *(of for of in counts if of > version)):
            upto = sum(num for of, num in counts.items() if of <= at)
            slack = self.batch * (at + self.eta - next_step + 1) - upto
            least = slack if least is None else min(least, slack)
        assert least is not None
        return least
