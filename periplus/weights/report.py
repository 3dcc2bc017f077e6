"""A delta as a tree for programs, and as text for people.

A figure that the file lacks is null in the tree and a dash in the text.
"""

from collections import Counter
from typing import Any

from periplus.values.safetensors_format import ELEMENT_BYTES
from periplus.view import units
from periplus.view.state import printable
from periplus.weights.reading import Delta, DirectoryVerdict

Tree = dict[str, Any]

DELTA_SCHEMA = "periplus.weights-delta/1"
"""Schema of `delta_tree`."""
VERDICT_SCHEMA = "periplus.weights-verdict/1"
"""Schema of `verdict_tree`."""
_BF16_BYTES = ELEMENT_BYTES["BF16"]
"""Bytes of a bf16 element."""


def delta_tree(delta: Delta) -> Tree:
    """Return the figures of a delta for programs.

    `bits_per_change` and `payload_bytes` count the payload alone; the file also holds the layout, digests and hashes.
    """
    head, tail = delta.head, delta.tail
    floors = tail.floors
    # The floors cover float tensors alone, so that they are divided by the changes of those.
    changed_floats = floors.num_changed if floors else 0
    return {
        "schema": DELTA_SCHEMA,
        "file": str(delta.path),
        "file_bytes": delta.file_bytes,
        "payload_bytes": tail.payload_bytes,
        "num_parts": head.num_parts,
        "base_digest": head.base_digest.hex(),
        "result_digest": head.result_digest.hex(),
        "num_tensors": len(head.layout.lines),
        "dtypes": dict(sorted(Counter(line.dtype for line in head.layout.lines).items())),
        "content_bytes": head.layout.content_bytes,
        "num_elements": tail.num_elements,
        "num_changed": tail.num_changed,
        "density": tail.num_changed / tail.num_elements if tail.num_elements else 0.0,
        "bits_per_change": _ratio(8 * tail.payload_bytes, tail.num_changed),
        "iid_floor_bits": _ratio(floors.iid_bits, changed_floats) if floors else None,
        "conditional_floor_bits": _ratio(floors.conditional_bits, changed_floats) if floors else None,
        "conditional_with_tables_floor_bits": (
            _ratio(floors.conditional_with_tables_bits, changed_floats) if floors else None
        ),
        "ratio_to_bf16": _ratio(_BF16_BYTES * tail.num_elements, tail.payload_bytes),
        "ratio_to_checkpoint": _ratio(head.layout.content_bytes, tail.payload_bytes),
    }


def verdict_tree(verdict: DirectoryVerdict, directory: str) -> Tree:
    """Return whether a directory holds the result of a delta, for programs."""
    head = verdict.delta.head
    return {
        "schema": VERDICT_SCHEMA,
        "directory": directory,
        "file": str(verdict.delta.path),
        "state_digest": verdict.found.hex(),
        "expected_digest": head.result_digest.hex(),
        "matches": verdict.is_result,
        "reason": verdict.why_not,
    }


def delta_text(tree: Tree) -> str:
    """Return `delta_tree` as a table for people."""
    dtypes = ", ".join(f"{count} {dtype}" for dtype, count in tree["dtypes"].items())
    return _aligned(
        [
            ("file", printable(tree["file"])),
            ("from", tree["base_digest"]),
            ("to", tree["result_digest"]),
            ("tensors", f"{tree['num_tensors']} ({dtypes}), {units.size(tree['content_bytes'])}" if dtypes else "none"),
            ("elements", f"{tree['num_elements']:,}"),
            ("changed", f"{tree['num_changed']:,} ({100 * tree['density']:.4g} %)"),
            ("payload", f"{units.size(tree['payload_bytes'])} in {tree['num_parts']} parts"),
            ("bits a change", _bits(tree["bits_per_change"])),
            ("  floor, i.i.d.", _bits(tree["iid_floor_bits"])),
            ("  floor, given base", _bits(tree["conditional_floor_bits"])),
            ("smaller than bf16", units.factor(tree["ratio_to_bf16"], 1)),
            ("smaller than dir", units.factor(tree["ratio_to_checkpoint"], 1)),
        ]
    )


def verdict_text(tree: Tree) -> str:
    """Return `verdict_tree` as a table for people."""
    lines = [
        ("directory", printable(tree["directory"])),
        ("has digest", tree["state_digest"]),
        ("expected", tree["expected_digest"]),
        ("matches", "yes" if tree["matches"] else f"no: {printable(tree['reason'])}"),
    ]
    return _aligned(lines)


def summary(delta: Delta) -> str:
    """Return one line about a delta that was written."""
    tree = delta_tree(delta)
    return (
        f"{printable(str(delta.path))}: {units.size(delta.file_bytes)}; {tree['num_changed']:,} of "
        f"{tree['num_elements']:,} elements changed ({100 * tree['density']:.4g} %); payload "
        f"{units.size(tree['payload_bytes'])}, {_bits(tree['bits_per_change'])} bits a change, "
        f"{units.factor(tree['ratio_to_bf16'], 1)} smaller than bf16"
    )


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _bits(value: float | None) -> str:
    return units.UNKNOWN if value is None else f"{value:.2f}"


def _aligned(lines: list[tuple[str, str]]) -> str:
    width = max(len(heading) for heading, _ in lines)
    return "\n".join(f"{heading.ljust(width)}  {value}" for heading, value in lines)
