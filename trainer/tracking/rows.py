"""A record as trackers get it: a step, and values under the names of metrics.jsonl.

Records of steps and evaluations keep the names of the metric registry. Names of other kinds get the kind before them,
such as `warmup/loss`, because a warm-up or a summary has names that steps have too; those of an evaluation set also get
the set's name, such as `eval_set/gsm8k/mean_at_k`. Every row has the `fork` and the
time since the start of the trainer. A value that is not finite is left out.

The step is the version that a record belongs to. For a training step it is the value `step`, which is therefore not
among the values. Steps of the warm-up come before the first version: they count up to 0. Phases of a resumed run belong
to the version that it goes on from.
"""

import json
from dataclasses import dataclass
from math import isfinite

from periplus.values.record import Record, RecordKind

_PLAIN = (RecordKind.STEP, RecordKind.EVAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerRow:
    """What a tracker logs for one record."""

    step: int
    values: dict[str, float | str]

    def to_json(self) -> str:
        """Return the row as one line of JSON."""
        return json.dumps({"step": self.step, "values": self.values})

    @classmethod
    def from_json(cls, line: str) -> "TrackerRow":
        """Return the row of a line that `to_json` made."""
        return cls(**json.loads(line))


def row_of(record: Record, resumed_version: int = 0) -> TrackerRow:
    """Return the row of a record, in a run that goes on from `resumed_version`."""
    prefix = "" if record.kind in _PLAIN else f"{record.kind}/"
    if record.kind is RecordKind.EVAL_SET:
        prefix += f"{record.text}/"
    values: dict[str, float | str] = {
        f"{prefix}{name}": value for name, value in record.values.items() if isfinite(value)
    }
    if record.kind is RecordKind.STEP:
        values.pop("step", None)
    values |= {f"staleness_tokens/{staleness}": num for staleness, num in sorted(record.staleness_tokens.items())}
    if record.text and record.kind is not RecordKind.EVAL_SET:
        values[f"{record.kind}/text"] = record.text
    step = max(record.policy.version, resumed_version)
    if record.kind is RecordKind.WARMUP:
        step = min(0, int(record.values.get("step", 0) - record.values.get("steps_total", 0)))
    return TrackerRow(step=step, values={**values, "fork": record.policy.fork, "time_s": round(record.time_s, 4)})
