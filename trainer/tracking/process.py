"""The process of one tracker, `python -m trainer.tracking.process`.

It reads lines from standard input: a TrackerOpening, then a TrackerRow each. At the end of the input, also when the
trainer has died, it closes the tracker and exits with 0. If the tracker raises an error, the process writes it to
standard output as one line and exits with 1. Prints of the libraries go to standard error, which is the trainer's log.
"""

import os
import signal
import sys
from pathlib import Path

from periplus.errors import explained_error
from trainer.tracking.opening import TrackerOpening
from trainer.tracking.rows import TrackerRow


def track() -> None:
    """Log the rows of standard input with the tracker that its first line names. Raises: what the tracker raises."""
    # Imported here, so that an error is reported like any other: it takes seconds, and may fail with a wrong version.
    from trainer.tracking.backends import open_tracker

    opening = TrackerOpening.from_json(sys.stdin.readline())
    Path(opening.folder).mkdir(parents=True, exist_ok=True)
    tracker = open_tracker(opening)
    for line in sys.stdin:
        tracker.log(TrackerRow.from_json(line))
    tracker.finish()


def main() -> None:
    """Run the process, and exit with 0 or 1."""
    # The trainer decides when rows end. A signal for the whole group, such as Ctrl-C, must not cut them short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        track()
    except Exception as error:  # the root of the process: the trainer must learn of any error
        answer.write(" ".join(explained_error(error).split()))
        answer.close()
        sys.exit(1)


if __name__ == "__main__":
    main()
