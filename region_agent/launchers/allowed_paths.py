"""Decides whether a run that a coordinator asks for lies where this region's operator allows runs.

Paths and job ids of a task come over the network. A run may lie below the agent's work directory and below the
directories of `--allow-dir`, after symbolic links are followed, and its job's id is one component of a path.
"""

from collections.abc import Sequence
from pathlib import Path

from periplus.errors import Denied


def check_run_path(path: Path, roots: Sequence[Path]) -> None:
    """Check that a run may lie at `path`. Raises: Denied with the path and the directories that are allowed."""
    real = path.resolve()
    if ".." in path.parts or not any(real.is_relative_to(root.resolve()) for root in roots):
        shown = f"{path}" if real == path else f"{path} ({real})"
        raise Denied(
            f"the run's directory {shown} is not below {', '.join(map(str, roots))}, where this region allows runs; "
            "choose another output.dir, or start its agent, `periplus up` or periplus.up() with that directory allowed "
            "(--allow-dir DIR)"
        )
