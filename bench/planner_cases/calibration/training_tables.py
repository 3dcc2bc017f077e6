"""Profiles of training in float32, from Sailor's tables, as series.

The profiled program is Megatron-DeepSpeed with eager attention over the whole square of scores.

- `update_s` is the optimizer's step of everything that was profiled: first and last layer and *two* transformer layers
  (`profile.sh`, `megatron/training.py`). It is the same on each row. The vocabulary is that of GPT-2, padded to a
  multiple of 128 times the tensor-parallel degree.
- Whether TF32 was on differs by run and shows in the rate: OPT-30 and LLAMA-3-8 on the A100-40 stay below the float32
  peak of 19.5 Tflop/s, all other runs on A100 and GH200 exceed it. The RTX-3090 has 35.6 Tflop/s either way.
- Left out: GPT-Neo-2.7 on GH-96, which repeats OPT-350 on GH-96 row for row with 26 layers where GPT-Neo has 34; and
  embeddings and last layers without a head, for which the cost model has no time.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from bench.planner_cases.calibration.layer_memory import LayerMemory
from bench.planner_cases.calibration.observations import MeasuredTerm, Numerics, Series
from bench.planner_cases.calibration.rows import Row, constant, grouped, number, series_of
from planner.devices.catalogue import architectures
from planner.problem.architecture import Architecture

Links = Mapping[tuple[str, int], float]
"""Measured rate in bytes per second by (device name, number of devices)."""
_GPUS = {
    "A100-40": "A100-40GB-SXM",
    "A100-80": "A100-80GB-SXM",
    "GH-96": "GH200-96GB",
    "V100-16": "V100-SXM2-16GB",
    "RTX-2080": "RTX-2080-Ti",
    "RTX-3090": "RTX-3090",
    "Titan-RTX": "Titan-RTX",
}
"""Device type of each name in Sailor's tables."""
_MODELS = {
    "OPT-350": "OPT-350M",
    "OPT-30": "OPT-30B",
    "GPT-Neo-2.7": "GPT-Neo-2.7B",
    "LLAMA-3-8": "Sailor-LLAMA-3-8",
}
"""Packaged model of each name in Sailor's tables."""
_SEQUENCE = {"LLAMA-3-8": 8192.0}
"""Sequence length of each model that differs from 2,048."""
_TF32 = frozenset({"A100-40", "A100-80", "GH-96"})
"""Devices whose runs used TF32, apart from `_PLAIN_RUNS`."""
_PLAIN_RUNS = frozenset({("OPT-30", "A100-40"), ("LLAMA-3-8", "A100-40")})
"""Pairs of model and device that ran in plain float32 on a device with TF32."""
_PROFILED_LAYERS = 2
"""Number of transformer layers that one profiled model has."""
_BUSES = frozenset({"RTX-2080", "RTX-3090", "Titan-RTX"})
"""Devices whose machines share one PCIe bus."""
_GPT2_VOCABULARY = 50257
"""Number of entries of GPT-2's vocabulary, before padding."""


def measured_links(rows: Iterable[Row]) -> dict[tuple[str, int], float]:
    """Return the bytes per second of each of n / 2 devices that all send to the other n / 2 of their machine.

    Only PCIe machines are included. Over NVLink a ring uses links to several neighbours at the same time, which
    measurements of pairs do not show.
    """
    return {
        (row["gpu"], int(row["gpus"])): float(row["max_gbytes_per_s"]) * 1e9 / (int(row["gpus"]) / 2)
        for row in rows
        if row["gpu"] in _BUSES
    }


def training_layers(links: Links, rows: Iterable[Row]) -> Iterator[Series]:
    """Yield the series of `sailor_train_layer_times.csv`; `links` are the measured links of its machines."""
    kept = [row for row in rows if not (row["model"] == "GPT-Neo-2.7" and row["gpu"] == "GH-96")]
    for (model, gpu, tensor, part), of in grouped(kept, "model", "gpu", "tp", "part"):
        if part == "transformer_layer":
            terms = (MeasuredTerm.TRAIN_FORWARD, MeasuredTerm.TRAIN_BACKWARD)
            yield from _forward_and_backward(model, gpu, int(tensor), of, terms, links)
            yield from _update(model, gpu, int(tensor), of)
        elif part == "final_norm_or_head" and model != "GPT-Neo-2.7":
            yield from _forward_and_backward(model, gpu, int(tensor), of, (MeasuredTerm.HEAD, MeasuredTerm.HEAD), links)


def _forward_and_backward(
    model: str,
    gpu: str,
    tensor: int,
    rows: list[Row],
    terms: tuple[MeasuredTerm, MeasuredTerm],
    links: Links,
) -> Iterator[Series]:
    """Yield one series of forward and one of backward passes."""
    length = _SEQUENCE.get(model, 2048.0)
    tf32 = gpu in _TF32 and (model, gpu) not in _PLAIN_RUNS
    for term, variant, column in zip(terms, ("forward", "backward"), ("fwd_s", "bwd_s"), strict=True):
        # Tokens are micro-batch x length. `links` has an entry only for machines that share a PCIe bus.
        yield series_of(
            term,
            "sailor",
            _GPUS[gpu],
            _MODELS[model],
            rows,
            {"tokens": lambda row: length * float(row["micro_batch"]), "sequence": constant(length)},
            number(column),
            arch=profiled_architecture(model, tensor),
            tensor=tensor,
            numerics=Numerics.TENSOR32 if tf32 else Numerics.FLOAT32,
            variant=variant,
            link_bytes_per_s=links.get((gpu, tensor)),
        )


def _update(model: str, gpu: str, tensor: int, rows: list[Row]) -> Iterator[Series]:
    """Yield a series of one row, since the rows of all micro-batches repeat the same measurement."""
    times = [float(row["update_s"]) for row in rows if float(row["update_s"]) > 0]
    if not times:
        return
    # Tied models have one embedding table; LLAMA has no learned positions.
    arch = profiled_architecture(model, tensor)
    params = _profiled_params(arch, tensor, tied=model == "GPT-Neo-2.7", positions=model != "LLAMA-3-8")
    yield Series(
        term=MeasuredTerm.UPDATE,
        source="sailor",
        gpu=_GPUS[gpu],
        model=_MODELS[model],
        arch=arch,
        tensor=tensor,
        numerics=Numerics.FLOAT32,
        columns={"params": np.array([params])},
        seconds=np.array([float(np.median(times))]),
    )


def profiled_architecture(model: str, tensor: int) -> Architecture:
    """Return the architecture that Sailor profiled under that name, with its padded vocabulary."""
    step = 128 * tensor
    vocabulary = -(-_GPT2_VOCABULARY // step) * step
    return replace(architectures()[_MODELS[model]], vocab_size=vocabulary)


def _profiled_params(arch: Architecture, tensor: int, *, tied: bool, positions: bool) -> float:
    """Return the parameters on one device: embeddings, two transformer layers and head.

    Learned positions are not split over devices.
    """
    tables = arch.embedding_params / tensor * (1 if tied else 2)
    learned = 2048 * arch.hidden_size if positions else 0
    return tables + learned + _PROFILED_LAYERS * arch.params_per_layer / tensor


def memory_of_layers(rows: Iterable[Row]) -> tuple[LayerMemory, ...]:
    """Return the measured bytes of `sailor_layer_memory.csv`, without last layers that have no head."""
    return tuple(
        LayerMemory(
            arch=profiled_architecture(row["model"], int(row["tp"])),
            tensor=int(row["tp"]),
            part=row["part"],
            sequence=_SEQUENCE.get(row["model"], 2048.0),
            params_bytes=float(row["params_bytes"]),
            activation_bytes=float(row["act_mem_bytes"]),
        )
        for row in rows
        if row["part"] != "last" or row["model"].startswith("OPT")
    )
