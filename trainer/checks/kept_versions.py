"""The newest published versions of the weights, kept so that samples can be computed again with what sampled them."""

from collections import OrderedDict

from periplus.values.policy import Policy
from periplus.values.weight_state import WeightState, content_bytes


class KeptVersions:
    """Up to `max_versions` states of up to `max_bytes` in all; the oldest go first.

    States share the tensors that did not change, such as the weights beside adapters; their bytes are counted for each
    state all the same.
    """

    def __init__(self, max_versions: int, max_bytes: int) -> None:
        self._max_versions = max_versions
        self._max_bytes = max_bytes
        self._states: OrderedDict[Policy, WeightState] = OrderedDict()

    def add(self, policy: Policy, state: WeightState) -> None:
        """Keep a state that no longer changes."""
        self._states[policy] = state
        limit = min(self._max_versions, self._max_bytes // max(1, content_bytes(state)))
        while len(self._states) > limit:
            self._states.popitem(last=False)

    def of(self, policy: Policy) -> WeightState | None:
        """Return the state of a version, or None if it is not kept."""
        return self._states.get(policy)

    def before(self, policy: Policy) -> tuple[Policy, ...]:
        """Return the kept versions that are older than one of the same history, oldest first."""
        return tuple(each for each in tuple(self._states) if each < policy)  # another thread may add one meanwhile
