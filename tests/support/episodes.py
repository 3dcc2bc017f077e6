"""Leases, and an environment and a tokenizer that need no files."""

from collections.abc import Sequence

from periplus.environment.environment import Item
from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose
from rollout_worker.episodes.queue import QueuedLease


class Letters:
    """A tokenizer of two ids for each prompt."""

    chat_template = None

    def __call__(self, prompt: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [3 + len(prompt) % 40, 4]}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids))


class Counting:
    """Scores the number of words of a completion."""

    def __len__(self) -> int:
        return 1000

    def item(self, index: int) -> Item:
        return Item(index=index, prompt=f"count to {index}", answer="")

    def score(self, index: int, completion: str) -> float:
        return float(len(completion.split()))


def lease(lease_id: int, *, start: Policy | None = None, alone: bool = False, group: int | None = None) -> QueuedLease:
    """Return a lease of a sample of its own group."""
    return QueuedLease(
        lease_id=lease_id,
        group=lease_id if group is None else group,
        sample=0,
        item=lease_id,
        start_at=start or Policy(0, 0),
        consume_by_version=9,
        purpose=Purpose.TRAIN,
        alone=alone,
    )
