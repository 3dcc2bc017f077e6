"""Profiles of inference engines in half precision, from the tables of Helix and Vidur, as series of layers.

- Helix: prompts have 750 tokens on average and answers 240 (`simulator/event_simulator/utils.py`), so a decoding
  sequence has 870 tokens when half of its answer is done. Its A100 has 40 GB (`google_machine_profiles.ini`). Times are
  rounded to 0.1 ms up to 100 tokens or sequences, and to 1 ms above. Rows that rounding may change by more than 5 % are
  left out.
- Vidur: the time of a layer is the sum of its kernels, without attention.
"""

from collections.abc import Iterable, Iterator

from bench.planner_cases.calibration.observations import MeasuredTerm, Series
from bench.planner_cases.calibration.rows import Row, constant, grouped, milliseconds, number, series_of
from planner.devices.catalogue import architectures

MAX_ROUNDING = 0.05
"""Largest relative error by rounding of a row that is kept."""
_HELIX_GPUS = {"a100": "A100-40GB-SXM", "v100": "V100-SXM2-16GB", "l4": "L4", "t4": "T4"}
"""Device type of each name in Helix's tables."""
_HELIX_MODELS = {"llama1_30b": "LLaMA-30B", "llama2_70b": "Llama-2-70B"}
"""Packaged model of each name in Helix's tables."""
_HELIX_PROMPT_TOKENS, _HELIX_CONTEXT_TOKENS = 750.0, 870.0
"""Mean tokens of a prompt in Helix's profiles, and mean tokens of a decoding sequence when half of its answer is
done."""
_VIDUR_GPUS = {"a100": "A100-80GB-SXM", "h100": "H100-SXM", "a40": "A40"}
"""Device type of each name in Vidur's tables."""
_VIDUR_MODELS = {
    "meta-llama/Llama-2-7b-hf": "Llama-2-7B",
    "meta-llama/Llama-2-70b-hf": "Llama-2-70B",
    "meta-llama/Meta-Llama-3-8B": "Llama-3-8B",
    "meta-llama/Meta-Llama-3-70B": "Llama-3-70B",
}
"""Packaged model of each name in Vidur's tables."""


def helix_layers(rows: Iterable[Row]) -> Iterator[Series]:
    """Yield the series of `helix_layer_times.csv`."""
    known = architectures()
    kept = [row for row in rows if _helix_is_exact(row)]
    for (model, machine, phase), of in grouped(kept, "model", "machine", "phase"):
        # Machines are named such as `a100` or `l4x2`; without a number it is one device.
        gpu, _, num = machine.partition("x")
        name = _HELIX_MODELS[model]
        prompt = phase == "prompt"
        length = _HELIX_PROMPT_TOKENS if prompt else _HELIX_CONTEXT_TOKENS
        term = MeasuredTerm.PREFILL_LAYER if prompt else MeasuredTerm.DECODE_LAYER
        columns = {"tokens": number("batch_tokens"), "sequence": constant(length)}
        yield series_of(
            term,
            "helix",
            _HELIX_GPUS[gpu],
            _same_layers(name),
            of,
            columns,
            milliseconds("layer_time_ms"),
            arch=known[name],
            tensor=int(num or 1),
        )


def _helix_is_exact(row: Row) -> bool:
    """Return whether rounding changes this row by at most `MAX_ROUNDING`."""
    size, time_ms = int(row["batch_tokens"]), float(row["layer_time_ms"])
    step_ms = 0.1 if row["phase"] == "decode" and size <= 100 else 1.0
    return size > 0 and step_ms / 2 <= MAX_ROUNDING * time_ms


def vidur_layers(rows: Iterable[Row]) -> Iterator[Series]:
    """Yield the series of `vidur_dense_ops.csv`."""
    known = architectures()
    for (gpu, model, tensor), of in grouped(rows, "gpu", "model", "tp"):
        name = _VIDUR_MODELS[model]
        # Attention is not part of this table, so a row depends on its tokens alone.
        yield series_of(
            MeasuredTerm.DENSE_LAYER,
            "vidur",
            _VIDUR_GPUS[gpu],
            _same_layers(name),
            of,
            {"tokens": number("num_tokens")},
            _vidur_layer_s,
            arch=known[name],
            tensor=int(tensor),
        )


def _same_layers(model: str) -> str:
    """Return the model's name in cross-validation, which two models share if their layers are equal.

    Llama-2-70B and Llama-3-70B differ only in their vocabulary: leaving out one would leave the other in.
    """
    return "Llama-70B" if model in {"Llama-2-70B", "Llama-3-70B"} else model


def _vidur_layer_s(row: Row) -> float:
    """Return the sum of a layer's kernels. The residual addition occurs twice; the embedding is not part of a layer."""
    times = {key: float(value) for key, value in row.items() if key.endswith("_ms") and key != "emb_ms"}
    return (sum(times.values()) + times["add_ms"]) / 1e3
