"""A disk in memory that lies as much as disks may: what was not synced is kept, dropped, torn or zeroed at a crash."""

import contextlib
import errno
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from periplus.spool.format import Buffer

Choose = Callable[[int], int]
"""A number from 0 to the argument, both included."""


class Killed(BaseException):
    """The process died within this call."""


@dataclass(eq=False)
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class FaultyFiles:
    """A FileLayer in memory. After `kill` or `cut_power`, files that were opened before are dead."""

    def __init__(self) -> None:
        self._now: dict[Path, _Inode] = {}
        self._synced: dict[Path, _Inode] = {}
        self._life = 0
        self.room_bytes: int | None = None
        self.bytes_until_killed: int | None = None
        self.failing_syncs = False
        self.num_syncs = 0

    # ---- faults ---------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process: everything that was written stays."""
        self._life += 1
        self.bytes_until_killed = None

    def cut_power(self, choose: Choose) -> None:
        """Cut the power: `choose` decides which names and bytes survive that were not synced."""
        self.kill()
        names = {path: node for path, node in self._now.items() if self._synced.get(path) is node or choose(1)}
        names |= {path: node for path, node in self._synced.items() if path not in self._now and choose(1)}
        for node in {id(node): node for node in names.values()}.values():
            unsynced = bytes(node.content[len(node.synced) :]) if node.content.startswith(node.synced) else b""
            tail = bytearray(unsynced[: choose(len(unsynced))])
            if tail and choose(3) == 0:  # a page was written, one before it was not
                start = choose(len(tail))
                end = min(len(tail), start + choose(64))
                tail[start:end] = bytes(end - start)
            node.content = bytearray(node.synced) + tail
            node.synced = bytes(node.content)
        self._now, self._synced = dict(names), dict(names)

    # ---- FileLayer ------------------------------------------------------------------------------------------------

    def make_folder(self, folder: Path) -> None: ...

    def names(self, folder: Path) -> list[str]:
        return [path.name for path in self._now if path.parent == folder]

    def create(self, path: Path) -> "_FaultyFile":
        if path in self._now:
            raise FileExistsError(errno.EEXIST, "File exists")
        self._now[path] = _Inode()
        return _FaultyFile(self, self._now[path], self._life)

    def read(self, path: Path, offset: int = 0, num_bytes: int = -1) -> bytes:
        content = self.node(path).content
        return bytes(content[offset:] if num_bytes < 0 else content[offset : offset + num_bytes])

    def node(self, path: Path) -> _Inode:
        if path not in self._now:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return self._now[path]

    def unlink(self, path: Path) -> None:
        self._now.pop(path, None)

    def remove_folder(self, folder: Path) -> None:
        if self.names(folder):
            raise OSError(errno.ENOTEMPTY, "Directory not empty")

    def sync_folder(self, folder: Path) -> None:
        self._check_sync()
        self._synced = dict(self._now)

    def lock(self, path: Path) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    # ---- for tests ------------------------------------------------------------------------------------------------

    def paths(self) -> list[Path]:
        return sorted(self._now)

    def content(self, path: Path) -> bytearray:
        """Return the content of a file, to be damaged."""
        return self.node(path).content

    def write(self, node: _Inode, life: int, part: Buffer) -> None:
        if life != self._life:
            raise Killed
        room = len(part)
        if self.room_bytes is not None:
            room = min(room, max(0, self.room_bytes - sum(len(each.content) for each in self._now.values())))
        if self.bytes_until_killed is not None:
            room = min(room, self.bytes_until_killed)
            self.bytes_until_killed -= room
        node.content += part[:room]
        if self.bytes_until_killed == 0:
            self.kill()
            raise Killed
        if room < len(part):
            raise OSError(errno.ENOSPC, "No space left on device")

    def sync(self, node: _Inode, life: int) -> None:
        if life != self._life:
            raise Killed
        self._check_sync()
        node.synced = bytes(node.content)

    def _check_sync(self) -> None:
        self.num_syncs += 1
        if self.failing_syncs:
            raise OSError(errno.EIO, "Input/output error")


class _FaultyFile:
    def __init__(self, disk: FaultyFiles, node: _Inode, life: int) -> None:
        self._disk, self._node, self._life = disk, node, life

    def append(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            self._disk.write(self._node, self._life, part)

    def sync(self) -> None:
        self._disk.sync(self._node, self._life)

    def close(self) -> None: ...
