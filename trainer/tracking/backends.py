"""Opens the trackers through accelerate's tracking classes: one run for a job, which its later forks go on with.

A resumed job repeats the steps after its checkpoint. What each tracker makes of the repeated steps:

- tensorboard: the directory is the same, and the new file hides (`purge_step`) what earlier files have after the
  checkpoint.
- wandb: the run has the job's id. wandb's own step only counts rows, so nothing is refused as out of order; charts
  have the training step (`step`) as their x-axis. Both rows of a repeated step stay, and `fork` tells them apart.
- trackio: the run has the job's id as its name. Both rows of a repeated step stay, and `fork` tells them apart.
"""

from typing import Any

from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from trainer.tracking.opening import TrackerOpening
from trainer.tracking.rows import TrackerRow

_STEP = "step"


class OpenTracker:
    """A tracker that is open. `first_row` is the number of rows before those that are logged here."""

    def __init__(self, tracker: Any, first_row: int) -> None:
        self._tracker = tracker
        self._num_rows = first_row
        self._counts_rows = tracker.name == "wandb"

    def log(self, row: TrackerRow) -> None:
        """Log one row. Raises: what the tracker raises."""
        if self._counts_rows:
            self._tracker.log({**row.values, _STEP: row.step}, step=self._num_rows)
        else:
            self._tracker.log(row.values, step=row.step)
        self._num_rows += 1

    def finish(self) -> None:
        """Write what is left, and close the tracker. Raises: what the tracker raises."""
        self._tracker.finish()


def open_tracker(opening: TrackerOpening) -> OpenTracker:
    """Open a tracker's run and store the job's configuration in it. Raises: what the tracker raises."""
    PartialState(cpu=True)  # accelerate's trackers log through it, and ask it whether this is the main process
    tracker = LOGGER_TYPE_TO_CLASS[opening.tracker](opening.name, **_settings(opening))
    tracker.start()
    if opening.tracker == "wandb":
        tracker.tracker.define_metric("*", step_metric=_STEP)
    tracker.store_init_configuration(dict(opening.configuration))
    return OpenTracker(tracker, opening.first_row)


def _settings(opening: TrackerOpening) -> dict[str, Any]:
    match opening.tracker:
        case "tensorboard":
            resumed = opening.resumed_version
            return {"logging_dir": opening.folder, "purge_step": None if resumed is None else resumed + 1}
        case "wandb":
            # Metrics and configuration alone: no output, code, metadata or load of the machine.
            quiet = {"console": "off", "disable_code": True, "disable_git": True, "save_code": False}
            quiet |= {"x_disable_meta": True, "x_disable_machine_info": True, "x_disable_stats": True}
            names = {"id": opening.job_id, "name": opening.job_id}
            return {**names, "dir": opening.folder, "resume": "allow", "settings": quiet}
        case "trackio":
            quiet = {"auto_log_cpu": False, "auto_log_gpu": False, "embed": False}
            return {"name": opening.job_id, "resume": "allow", **quiet}
        case unknown:
            raise ValueError(f"no tracker is named {unknown}")
