"""Measures a delta's encoding on a GPU against the time of reading both versions once, at the copy bandwidth.

Two versions lie on the device, and a share of their elements differs. The yardstick is a copy of one version, which
moves as many bytes as one read of both. Four figures are compared with it:
- `gpu_encode_vs_read`, the figure with a target: until positions and new elements lie on the device;
- `gpu_encode_to_host_vs_read`: until they lie on the host, by the function with which the trainer takes a version
  (trainer/publishing/device_snapshot.py);
- `wire_encode_vs_read`: encoding them for the wire on the host's threads, which training does not wait for;
- `whole_encode_vs_read`: both of the latter, one after the other.

The changes are first checked to lead from one version to the other. The last line is one JSON object.
"""

import argparse
import os
import statistics
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.engine_cases.accelerator.record import at_most, device_of, parser_of, print_record
from bench.engine_cases.accelerator.shapes import config_of
from bench.weight_deltas.device import Case, case, check, timed
from periplus.codec.weights.encoder import Encoder
from periplus.values.weight_state import Tensor, WeightState
from trainer.publishing.device_snapshot import replace_changed

MAX_VS_READ = 3.0
"""Target of `gpu_encode_vs_read`, the same as in bench/weight_deltas/weight_codec.py."""

WIRE_PASSES = 5
"""Passes of encoding for the wire, of which the median counts. One more comes before them, for compilation."""


def main() -> int:
    """Run the measurement and print its JSON line."""
    parser = parser_of("encode_vs_read", __doc__)
    parser.add_argument("--elements", type=int, help="elements of a version; else as many as the shape has, about")
    parser.add_argument("--percent", type=float, default=1.0, help="share of the elements that differ")
    parser.add_argument(
        "--threads", type=int, default=min(16, os.cpu_count() or 1), help="threads of the wire encoding"
    )
    arguments = parser.parse_args()
    device = device_of(arguments)
    results = measured(arguments, device)
    reach = [at_most("gpu_encode_vs_read", results["gpu_encode_vs_read"], MAX_VS_READ, "ratio")]
    print_record("encode_vs_read", arguments, device, results, reach)
    return 0


def measured(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return the times in seconds, and their ratios to one read of both versions."""
    num_elements = arguments.elements or _elements_of(arguments.shape)
    of = case(num_elements, arguments.percent / 100, device.type)
    check(of)
    found = timed(of)
    wire_s, payload_bytes, num_changed = _wire(of, arguments.threads)
    return {
        **found,
        "wire_encode_s": wire_s,
        "wire_encode_vs_read": wire_s / found["read_s"],
        "whole_encode_vs_read": (found["to_host_s"] + wire_s) / found["read_s"],
        "elements": num_elements,
        "changed_elements": num_changed,
        "payload_bytes": payload_bytes,
    }


def _wire(of: Case, threads: int) -> tuple[float, int, int]:
    """Return the median seconds of encoding the changes on the host, the payload's bytes, and the changed elements."""
    scratch, positions = of.base.clone(), []
    for part, spans in of.chunks:
        positions += [change.positions for change in replace_changed(scratch[part], of.new[part], spans)]
    base, new = _state(of.base), _state(of.new)
    spent_s = []
    for _ in range(1 + WIRE_PASSES):
        began_s = time.perf_counter()
        encoder = Encoder(base, new, num_threads=threads, changes=positions)
        for _part in encoder.parts():
            pass
        spent_s.append(time.perf_counter() - began_s)
    return statistics.median(spent_s[1:]), encoder.stats.payload_bytes, encoder.stats.num_changed


def _state(words: torch.Tensor) -> WeightState:
    array: npt.NDArray[np.uint8] = words.cpu().numpy().view(np.uint8)
    return {"w": Tensor("BF16", (words.numel(),), array)}


def _elements_of(shape: str) -> int:
    # What the matrices of the layers and the embedding hold; norms are too small to count.
    config = config_of(shape)
    attention = 2 * config.head_dim * (config.num_attention_heads + config.num_key_value_heads)
    layer = config.hidden_size * (attention + 3 * config.intermediate_size)
    tables = 1 if config.tie_word_embeddings else 2
    return int(config.num_hidden_layers * layer + tables * config.vocab_size * config.hidden_size)


if __name__ == "__main__":
    sys.exit(main())
