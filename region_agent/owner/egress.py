"""The bytes that a region's gateway has sent to other regions today, by the counters of `gateway/traffic.py`.

A day is one of UTC. If the clock goes back over midnight, the count of the later day goes on.
"""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

MAX_DAYS_BACK = 1
"""Days that the clock may have gone back. If it is more, it was wrong before, and the count begins anew."""


@dataclass(frozen=True, slots=True)
class DayOfEgress:
    """Bytes that were sent on the day `day` (ISO 8601). `counter_bytes` is the gateway's counter when it was read."""

    day: str = ""
    sent_bytes: int = 0
    counter_bytes: int = 0

    @property
    def ends_at(self) -> str:
        """When the next day begins, for a person."""
        return f"{date.fromisoformat(self.day) + timedelta(days=1)} 00:00 UTC"

    def counted(self, counter_bytes: int, now_unix_s: float) -> "DayOfEgress":
        """Return the count after another reading of the counter, which starts at 0 with the agent."""
        today = datetime.fromtimestamp(now_unix_s, UTC).date()
        new_bytes = counter_bytes - self.counter_bytes
        days_ahead = (date.fromisoformat(self.day) - today).days if self.day else -1
        if 0 <= days_ahead <= MAX_DAYS_BACK:
            return DayOfEgress(self.day, self.sent_bytes + new_bytes, counter_bytes)
        # What was sent since the last reading, a moment ago, may be of either day.
        return DayOfEgress(today.isoformat(), new_bytes, counter_bytes)

    def to_json(self) -> str:
        """Return the day as the text of the file that an agent keeps."""
        return json.dumps(asdict(self))


def kept_day(path: Path) -> DayOfEgress:
    """Return the day that an agent before this one kept; an empty one if there is none that can be read."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return DayOfEgress(date.fromisoformat(tree["day"]).isoformat(), int(tree["sent_bytes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return DayOfEgress()
