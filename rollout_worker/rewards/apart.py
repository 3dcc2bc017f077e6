"""Keeps code of a user's own from reading the worker that it serves, and other processes, in /proc.

Under root it becomes a user without files and rights, if that user can read the interpreter and the code. In any case
it gets a user namespace of its own: the kernel shows no process outside of it the environment or memory of one, even
to the same user (ptrace(2), "Ptrace access mode checking").
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout_worker.rewards.keeper import die_with_parent
from rollout_worker.rewards.sandbox import kernel
from rollout_worker.rewards.sandbox.kernel import NOBODY

PROGRAMS = Path(__file__).parents[2]
"""Folder of this program's packages."""


def leave_worker(folder: str, *, may_stay: bool) -> None:
    """Take from this process, which has one thread, what leads to the worker. `folder` has the user's code.

    Raises: OSError if the kernel refuses, unless the process `may_stay` as it is.
    """
    became = os.geteuid() == 0 and _become_nobody((Path(os.__file__), Path(sys.executable), PROGRAMS, Path(folder)))
    try:
        _enter_namespace()
    except OSError as error:
        if not (became or may_stay):
            raise OSError(
                error.errno,
                f"the kernel refuses a user namespace ({error.strerror}), without which the user's own code could read "
                "the worker's secrets; allow user namespaces, run the agent as root, or start it with "
                "--allow-unsandboxed",
            ) from error
    die_with_parent()  # another user clears it


def _become_nobody(needed: tuple[Path, ...]) -> bool:
    """Give up root, if nobody can read what is needed. Return whether that was done."""
    with _as_nobody():
        can_read = all(os.access(path, os.R_OK, effective_ids=True) for path in needed)
    if can_read:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    return can_read


@contextmanager
def _as_nobody() -> Iterator[None]:
    group, user = os.getegid(), os.geteuid()
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        os.setegid(group)


def _enter_namespace() -> None:
    """Enter a user namespace with this process's user and group alone, under the same numbers."""
    user, group = os.geteuid(), os.getegid()
    kernel.show_memory()  # else its own maps below are another user's files
    kernel.unshare(kernel.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    kernel.set_no_new_privileges()
