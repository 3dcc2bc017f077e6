from collections import Counter, defaultdict
from math import log2

import numpy as np
import pytest

from periplus.codec.weights import floors as module
from periplus.codec.weights.floors import MANTISSA_BITS, Floors, floors
from periplus.values.safetensors_format import ELEMENT_BYTES
from periplus.values.weight_state import Tensor, WeightState
from tests.support.checkpoints import model, moved, next_model, tensor


def entropy_bits(counts: Counter[int]) -> float:
    total = counts.total()
    return sum(count * log2(total / count) for count in counts.values() if count)


def by_hand(base: WeightState, new: WeightState) -> Floors:
    """Element by element, as the module's text says it."""
    contexts: dict[tuple[str, str, int], Counter[int]] = defaultdict(Counter)
    for name, old in base.items():
        if name not in new or (old.dtype, old.shape) != (new[name].dtype, new[name].shape):
            continue
        if old.dtype in MANTISSA_BITS:
            width = ELEMENT_BYTES[old.dtype]
            pairs = zip(old.data.view(f"<u{width}").tolist(), new[name].data.view(f"<u{width}").tolist(), strict=True)
            for before, after in pairs:
                step = (_key(after, width) - _key(before, width) + (1 << 8 * width - 1)) % (1 << 8 * width)
                exponent = (before % (1 << 8 * width - 1)) >> MANTISSA_BITS[old.dtype]
                contexts[name, old.dtype, exponent][step - (1 << 8 * width - 1)] += 1
    whole = sum(contexts.values(), Counter())
    num_elements, num_changed = whole.total(), whole.total() - whole[0]
    return Floors(
        iid_bits=_bits(whole),
        conditional_bits=sum(_bits(steps) for steps in contexts.values()),
        conditional_with_tables_bits=_tied(contexts),
        step_entropy_bits=sum(entropy_bits(steps) for steps in contexts.values()),
        num_changed=num_changed,
        num_elements=num_elements,
    )


def _key(bits: int, width: int) -> int:
    sign = 1 << 8 * width - 1
    return 2 * sign - 1 - bits if bits & sign else bits | sign


def _bits(steps: Counter[int]) -> float:
    changed = Counter({step: count for step, count in steps.items() if step})
    return entropy_bits(Counter({0: steps[0], 1: changed.total()})) + entropy_bits(changed)


def _with_table(steps: Counter[int]) -> float:
    changed = steps.total() - steps[0]
    distinct = sum(1 for step, count in steps.items() if step and count)
    tables = 0.5 * log2(steps.total()) + (max(0, distinct - 1) * 0.5 * log2(changed) if changed else 0)
    return _bits(steps) + tables


def _tied(contexts: dict[tuple[str, str, int], Counter[int]]) -> float:
    groups: dict[tuple[str, int], list[Counter[int]]] = defaultdict(list)
    for (_, dtype, exponent), steps in contexts.items():
        groups[dtype, exponent].append(steps)
    return sum(min(sum(map(_with_table, g)), _with_table(sum(g, Counter()))) for g in groups.values())


BASE = model(1) | {"big": tensor(7, "BF16", (90, 100)), "gone": tensor(8)}
NEW = next_model(BASE, 3) | {"big": moved(moved(BASE["big"], 1, 0.3), 2, 0.3), "new": tensor(9)}
del NEW["gone"]
NANS = {"a": Tensor("BF16", (4,), np.array([0x7FC1, 0x8000, 0xFFFF, 0], "<u2"))}
ZEROS = {"a": Tensor("BF16", (4,), np.array([0, 0, 0x7FFF, 0xFFFF], "<u2"))}


@pytest.mark.parametrize(
    ("base", "new"),
    [(BASE, NEW), (model(1), model(2)), (BASE, BASE), (NANS, ZEROS), (ZEROS, NANS), ({}, BASE), ({}, {})],
)
@pytest.mark.parametrize("piece_elements", [1 << 20, 64])
def test_the_floors_are_those_counted_by_hand(
    base: WeightState, new: WeightState, piece_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_ELEMENTS", piece_elements)
    expected = by_hand(base, new)
    found = floors(base, new)
    for field in Floors.__dataclass_fields__:
        assert getattr(found, field) == pytest.approx(getattr(expected, field), rel=1e-9, abs=1e-6), field


def test_independent_changes_cost_what_the_textbook_says() -> None:
    base = {"a": Tensor("BF16", (1000,), np.full(1000, 0x3F80, "<u2"))}
    bits = np.full(1000, 0x3F80, "<u2")
    bits[:10] += 1
    found = floors(base, {"a": Tensor("BF16", (1000,), bits)})
    assert found.iid_bits == pytest.approx(1000 * (0.01 * log2(100) + 0.99 * log2(1 / 0.99)))
    assert found.conditional_bits == pytest.approx(found.iid_bits)
    assert found.conditional_with_tables_bits == pytest.approx(found.iid_bits + 0.5 * log2(1000))
