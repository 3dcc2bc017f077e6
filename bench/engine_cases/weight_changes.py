"""Makes a next version of a state, in which a share of the elements has changed, and the change as a worker gets it."""

import numpy as np

from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.encoder import Encoder
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.engine import ChangedElements


def changed(state: WeightState, rng: np.random.Generator, share: float) -> WeightState:
    """Return the state with this share of its elements, 0 to 1, one unit in the last place higher or lower."""
    found = {}
    for name, each in state.items():
        bits = each.data.view(np.uint16).copy()
        # The gaps between independently chosen elements are geometric. Drawing a tenth more of them than expected, and
        # a few for small tensors, reaches the end of the tensor in practice; a gap for each change costs less than a
        # number for each element.
        gaps = rng.geometric(share, int(1.1 * share * bits.size) + 32)
        positions = np.cumsum(gaps) - 1
        bits[positions[positions < bits.size]] ^= 1
        found[name] = Tensor(each.dtype, each.shape, bits.view(np.uint8))
    return found


def delta(before: WeightState, after: WeightState, num_threads: int = 1) -> ChangedElements:
    """Return the change as a worker has it after it decoded a publication."""
    decoder = Decoder(before, max_content_bytes=sum(each.data.nbytes for each in after.values()))
    for part in Encoder(before, after, num_threads=num_threads).parts():
        decoder.feed(part)
    return ChangedElements(staged=(decoder.staged(),))
