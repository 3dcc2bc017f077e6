"""Records of a job's training: a record is one line of `metrics.jsonl`, and it is sent to the job's watchers.

The names of a record's values are those of the registry in `periplus/process/telemetry.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from periplus.config import finite_json
from periplus.values.policy import Policy


class RecordKind(StrEnum):
    """The kind of a record.

    PHASE: the trainer began something, which the text names. WARMUP: a step of the supervised warm-up. EVAL: an
    evaluation on held-out problems; the text is before, during or after. EVAL_SET: an evaluation of a named set, which
    the text names; its policy is the one at which it began. STEP: a training step. NOTICE: something that a person
    should look at, which the text says. REPLICA: the checkpoint of the policy has a replica, whose URL is the text;
    only watchers get it. SUMMARY: the end of the run.
    """

    PHASE = "phase"
    WARMUP = "warmup"
    EVAL = "eval"
    EVAL_SET = "eval_set"
    STEP = "step"
    NOTICE = "notice"
    REPLICA = "replica"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of a trainer.

    `time_s` counts from the trainer's start. `staleness_tokens` maps a staleness in versions to the number of tokens
    consumed with it.
    """

    kind: RecordKind
    policy: Policy
    time_s: float
    values: Mapping[str, float] = field(default_factory=dict)
    staleness_tokens: Mapping[int, int] = field(default_factory=dict)
    text: str = ""

    def to_json(self) -> str:
        """Return the record as one line of `metrics.jsonl`, with null for a value that is not finite."""
        line: dict[str, object] = {
            "kind": self.kind.value,
            "fork": self.policy.fork,
            "version": self.policy.version,
            "time_s": round(self.time_s, 4),
        }
        if self.text:
            line["text"] = self.text
        line |= self.values
        if self.staleness_tokens:
            line["staleness_tokens"] = {str(k): v for k, v in sorted(self.staleness_tokens.items())}
        return finite_json.dumps(line)

    @classmethod
    def from_json(cls, line: str) -> "Record":
        """Return the record of a line that `to_json` made, without the values that are null.

        Raises: ValueError, KeyError or TypeError for a line that is not a record.
        """
        data = json.loads(line)
        if not isinstance(data, dict):
            raise ValueError(f"a record is an object, not {type(data).__name__}")
        kind, policy = RecordKind(data.pop("kind")), Policy(int(data.pop("fork")), int(data.pop("version")))
        time_s, text = float(data.pop("time_s")), str(data.pop("text", ""))
        staleness = {int(k): int(v) for k, v in data.pop("staleness_tokens", {}).items()}
        values = {name: value for name, value in data.items() if value is not None}
        return cls(kind=kind, policy=policy, time_s=time_s, values=values, staleness_tokens=staleness, text=text)
