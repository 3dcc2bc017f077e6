"""The folders of an agent's tasks, by which the next agent of the region finds the processes of the one before.

    <state directory>/tasks/<task>/task.json       what the process is to do; it reads this file
                                   status.json     how it ended; it writes this file
                                   process.json    its id, when it was started, and the task as the agent knows it

A folder is made before its process is started, and removed once the process has ended and its status was read. It holds
the job's secret: only its owner may read it. An agent that is killed, or told to leave its tasks alone, leaves the
folders; the next one takes their processes over.
"""

import contextlib
import json
import logging
import shutil
import signal
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from periplus.job.run_directory import write_atomically
from periplus.process.telemetry import event
from region_agent.control.reconcile import LocalTask
from region_agent.launchers.child import AdoptedChild

log = logging.getLogger(__name__)

TASK_FILE = "task.json"
STATUS_FILE = "status.json"
IDENTITY_FOLDER = "identity"
_PROCESS_FILE = "process.json"

LONGEST_NAME = 200
"""Characters of the longest name of a folder; file systems take 255. A longer one is replaced by its hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedProcess:
    """A process as its agent noted it: its id, when it was started (`child.created_at`), and what it is.

    `has_been_asked` says that it was asked to stop, which must not be repeated.
    """

    pid: int
    created: float
    task: LocalTask
    restarts: int
    has_been_asked: bool = False


_STARTED = TypeAdapter(StartedProcess)


class TaskFolders:
    """The folders below `root`. Nothing is made before `make`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, task_id: str) -> Path:
        """Return the folder of a task."""
        name = quote(task_id, safe="")
        return self._root / (name if len(name) <= LONGEST_NAME else sha256(task_id.encode()).hexdigest())

    def make(self, task_id: str) -> Path:
        """Make a task's folder, empty. Raises: OSError."""
        folder = self.folder(task_id)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        return folder

    def note(self, process: StartedProcess) -> None:
        """Note that a process runs. An error is logged: then the next agent does not find the process."""
        try:
            path = self.folder(process.task.task_id) / _PROCESS_FILE
            write_atomically(path, _STARTED.dump_json(process).decode())
        except Exception as error:  # of a full disk, for example, which must not keep a task from running
            event(log, logging.WARNING, "process_not_noted", task=process.task.task_id, why=error)

    def status(self, task_id: str) -> str:
        """Return what a process wrote about its end; empty if it wrote nothing."""
        path = self.folder(task_id) / STATUS_FILE
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def remove(self, task_id: str) -> None:
        """Remove a task's folder, and with the last one the folder around them."""
        shutil.rmtree(self.folder(task_id), ignore_errors=True)
        with contextlib.suppress(OSError):  # it is not empty
            self._root.rmdir()

    def left_behind(self) -> list[StartedProcess]:
        """Return the processes that another agent noted and did not see end. Those of another version are killed."""
        found = []
        for path in sorted(self._root.glob(f"*/{_PROCESS_FILE}")):
            try:
                found.append(_STARTED.validate_json(path.read_bytes()))
            except (OSError, ValidationError) as error:
                event(log, logging.WARNING, "process_unreadable", path=path, why=error)
                # What is started in its place must not meet it.
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    noted = json.loads(path.read_bytes())
                    AdoptedChild(int(noted["pid"]), float(noted["created"])).send_signal(signal.SIGKILL)
        return found
