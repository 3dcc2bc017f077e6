"""Profiles of single kernels and collectives, from the tables of aiconfigurator and Vidur, as series.

Message sizes in aiconfigurator's table of collectives count half-precision elements (`collector/collect_nccl.py`).
These rows are left out:

- Collectives across machines, all-to-all, send and receive, and machines that link pairs of devices. The cost model
  does not price such networks and patterns inside a machine.
- Collectives of less than 64 KiB. A decoding step of eight sequences of a model with hidden size 4,096 sends as much.
- Decoding attention whose caches fit into the last-level cache of the device. The benchmark repeats one call and finds
  them there, whereas an engine has run all other layers in between.
- Matrix products with a side below 1,024, and attention of less than 128 tokens. Layers have no kernels so small.
"""

from collections.abc import Iterable, Iterator

from bench.planner_cases.calibration.observations import MeasuredTerm, Series
from bench.planner_cases.calibration.rows import Row, grouped, milliseconds, number, series_of
from planner.problem.architecture import Architecture

MIN_SIDE = 1024
"""Least side of a matrix product that is kept, in elements."""
MIN_TOKENS = 128
"""Least sequence length of attention that is kept."""
MIN_MESSAGE_BYTES = 65536
"""Least payload of a collective that is kept."""
_NODES = {"a100_dgx": "A100-80GB-SXM", "h100_dgx": "H100-SXM"}
"""Device type of each kind of machine in Vidur's tables."""
_GPUS = {
    "a100_sxm": "A100-80GB-SXM",
    "h100_sxm": "H100-SXM",
    "h200_sxm": "H200-SXM",
    "l40s": "L40S",
    "b200_sxm": "B200-SXM",
}
"""Device type of each name in aiconfigurator's tables."""
_LAST_LEVEL_BYTES = {"a100_sxm": 40e6, "h100_sxm": 50e6, "h200_sxm": 50e6, "l40s": 96e6, "b200_sxm": 126e6}
"""Size of the last-level cache of each device in bytes."""
_COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Collectives that the cost model prices."""


def vidur_collectives(rows: Iterable[Row]) -> Iterator[Series]:
    """Yield the series of `vidur_collectives.csv`."""
    kept = [r for r in rows if r["collective"] in _COLLECTIVES and r["devices_per_node"] == r["num_workers"]]
    for (node, kind, num), of in grouped(kept, "node", "collective", "num_workers"):
        if node in _NODES:
            yield _collective("vidur", _NODES[node], kind, int(num), of, "size", "median_ms", 1)


def nccl_collectives(rows: Iterable[Row]) -> Iterator[Series]:
    """Yield the series of `aiconfigurator_nccl.csv`."""
    for (gpu, kind, num), of in grouped(rows, "gpu", "op", "num_gpus"):
        if kind in _COLLECTIVES:
            yield _collective("aiconfigurator", _GPUS[gpu], kind, int(num), of, "message_size", "latency_ms", 2)


def _collective(
    source: str, gpu: str, kind: str, num: int, rows: list[Row], size: str, time_ms: str, scale: int
) -> Series:
    kept = [row for row in rows if scale * float(row[size]) >= MIN_MESSAGE_BYTES]
    return series_of(
        MeasuredTerm.COLLECTIVE,
        source,
        gpu,
        "",
        kept,
        # `scale` turns the table's sizes into bytes: aiconfigurator counts elements of two bytes.
        {"payload_bytes": lambda row: scale * float(row[size])},
        milliseconds(time_ms),
        tensor=num,
        variant=kind,
    )


def matrix_products(rows: Iterable[Row]) -> Iterator[Series]:
    """Yield the series of `aiconfigurator_gemm_bf16.csv`, one for each device and quarter of the shapes."""
    kept = [row for row in rows if min(int(row["n"]), int(row["k"])) >= MIN_SIDE]
    # Sorted, so that a shape is in the same quarter whatever the order of rows.
    shapes = sorted({(int(row["n"]), int(row["k"])) for row in kept})
    part = {shape: _part(at) for at, shape in enumerate(shapes)}
    labelled = [{**row, "part": part[int(row["n"]), int(row["k"])]} for row in kept]
    columns = {"m": number("m"), "n": number("n"), "k": number("k")}
    for (gpu, name), of in grouped(labelled, "gpu", "part"):
        yield series_of(
            MeasuredTerm.MATMUL, "aiconfigurator", _GPUS[gpu], name, of, columns, milliseconds("latency_ms")
        )


def attention_kernels(rows: Iterable[Row]) -> Iterator[Series]:
    """Yield the series of `aiconfigurator_attention_bf16.csv`."""
    kept = [row for row in rows if int(row["seq_len"]) >= MIN_TOKENS and not _is_warm(row)]
    # The index of a shape decides in which quarter of cross-validation it is, so it must not depend on the order of
    # rows.
    shapes = sorted({(int(row["heads"]), int(row["kv_heads"])) for row in kept})
    for (gpu, phase, heads, kv_heads), of in grouped(kept, "gpu", "phase", "heads", "kv_heads"):
        prefill = phase == "context"
        # A prefill processes all tokens of its sequences, a decoding step one token of each.
        tokens = _tokens if prefill else number("batch")
        yield series_of(
            MeasuredTerm.PREFILL_ATTENTION if prefill else MeasuredTerm.DECODE_ATTENTION,
            "aiconfigurator",
            _GPUS[gpu],
            _part(shapes.index((int(heads), int(kv_heads)))),
            of,
            {"tokens": tokens, "sequence": number("seq_len")},
            milliseconds("latency_ms"),
            arch=_heads(int(heads), int(kv_heads)),
        )


def _part(index: int) -> str:
    """Return the name of the quarter of shapes that is left out together in cross-validation."""
    return f"shapes, quarter {index % 4 + 1}"


def _tokens(row: Row) -> float:
    return float(row["batch"]) * float(row["seq_len"])


def _is_warm(row: Row) -> bool:
    """Return whether the benchmark finds the caches of this row in the device's last-level cache."""
    caches = 2 * 2 * 128 * int(row["kv_heads"]) * int(row["batch"]) * int(row["seq_len"])
    return row["phase"] == "generation" and caches <= _LAST_LEVEL_BYTES[row["gpu"]]


def _heads(heads: int, kv_heads: int) -> Architecture:
    """Return an architecture that has only what attention needs; heads have 128 elements."""
    return Architecture(
        name=f"{heads}/{kv_heads}",
        hidden_size=heads * 128,
        num_layers=1,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=128,
        intermediate_size=0,
        vocab_size=0,
        tied_embeddings=True,
    )
