"""The shared library of Periplus: values, codecs, errors, RPC, job files, environments, views and the command's entry.

Every service and the planner import it. It imports none of them, and neither torch, vllm nor transformers.

For scripts the package also has the names in `__all__` (docs/library.md). Packages register them in the entry-point
group `periplus.library`, as they do their commands, and one is loaded when it is first used. Type checkers and editors
read the imports below, which never run.
"""

import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.client.library.client import Client, connect
    from coordinator.client.library.starting import up
    from coordinator.client.library.submitted_job import JobStatus, SubmittedJob
    from periplus.job.job_file import JobFile

__all__ = ["Client", "JobFile", "JobStatus", "SubmittedJob", "connect", "up"]

LIBRARY_ENTRY_POINTS = "periplus.library"
"""Entry-point group in which packages register what scripts use."""

# Hidden from type checkers: they would take every name for one that exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Python asks here for each submodule too, before it imports it: only names of the library cost a look.
        points = importlib.metadata.entry_points(group=LIBRARY_ENTRY_POINTS, name=name) if name in __all__ else ()
        for point in points:
            globals()[name] = point.load()
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
