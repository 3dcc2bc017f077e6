"""Holds the prompt of each sample against that of its problem, so that nothing is trained on that was not leased.

Workers encode a problem's prompt with the job's own tokenizer and template, and so does this module. Where an episode
has turns, its environment may open it otherwise, and nothing is compared.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from periplus.environment.environment import Environment
from periplus.environment.prompts import PromptEncoder
from periplus.errors import CorruptFrame
from periplus.values.trajectory import Trajectory

MAX_KNOWN = 4096
"""Problems whose prompts are kept encoded: the samples of a group come at about the same time. Chosen by hand."""


class LeasedPrompts:
    """The prompts of a job's problems, by their numbers in the environment."""

    def __init__(self, environment: Environment, encoder: PromptEncoder) -> None:
        @lru_cache(MAX_KNOWN)
        def ids_of(item: int) -> npt.NDArray[np.int32]:
            return np.asarray(encoder.encode(environment.item(item)), np.int32)

        self._ids_of = ids_of

    def check(self, trajectory: Trajectory) -> None:
        """Raises: CorruptFrame if the sample's prompt is not its problem's."""
        try:
            expected = self._ids_of(trajectory.item)
        except LookupError as error:
            raise CorruptFrame(f"bad item: the job has no problem {trajectory.item}; drop it") from error
        if not np.array_equal(trajectory.prompt_ids, expected):
            raise CorruptFrame(
                f"bad prompt: {len(trajectory.prompt_ids)} tokens that are not the {len(expected)} of problem "
                f"{trajectory.item}; drop it, and see that all regions have the same tokenizers and transformers"
            )
