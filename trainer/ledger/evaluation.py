"""Evaluations: groups of one sample each, whose results are handed out together.

The trainer waits for an evaluation, which is then leased before everything else; or it trains on, and the evaluation
runs in the background: it is leased after everything else (leasing.py). One evaluation runs at a time.

All functions here change the `LedgerState` in place, and append what must be done outside to `effects`.
"""

from periplus.values.trajectory import Purpose
from trainer.ledger import leasing
from trainer.ledger.state import LedgerState, SampleGroup
from trainer.ledger.values import Effect, EvalReady


def open_evaluation(state: LedgerState, items: tuple[int, ...], *, is_background: bool) -> None:
    """Open one evaluation group with one sample for each item; it takes no room for tokens."""
    # Evaluation groups have numbers of their own, which no training group ever reaches.
    numbers = tuple(range(state.next_eval_group, state.next_eval_group + len(items)))
    state.next_eval_group += len(items)
    state.evaluation, state.is_background = numbers, is_background
    for number, item in zip(numbers, items, strict=True):
        group = SampleGroup(
            number=number,
            item=item,
            purpose=Purpose.EVAL,
            size=1,
            opened_s=state.now_s,
            version=state.policy.version,
        )
        # They take no room for tokens, so training and evaluation cannot keep each other from opening groups.
        state.put_group(group, 0)
        leasing.wait_again(state, group, 0)


def finish_evaluation(state: LedgerState, effects: list[Effect]) -> None:
    if state.evaluation is not None and all(state.groups[number].is_whole for number in state.evaluation):
        results = tuple(state.groups[number].done[0] for number in state.evaluation)
        # Each group of an evaluation has one sample, number 0.
        for number in state.evaluation:
            state.remove_group(state.groups[number], 0)
        state.evaluation, state.is_background = None, False
        state.idle_waiting.clear()
        effects.append(EvalReady(results))
