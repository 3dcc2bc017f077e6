"""The disk that lies (faulty_files.py), with files written in place, and a process that may die at each call."""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

from periplus.spool.format import Buffer
from region_agent.weights.disk.files import PlacedFile
from tests.support.faulty_files import Choose, FaultyFiles, Killed, _FaultyFile, _Inode

BLOCK_BYTES = 64
"""Bytes that a power cut leaves whole: fewer than in real sectors, since test states are small."""


class FaultyWeightFiles(FaultyFiles):
    """A WeightFiles. `calls_until_killed`: the call that brings it to nothing does half of its work, and kills."""

    def __init__(self) -> None:
        super().__init__()
        self._placed: list[_Inode] = []
        self.calls_until_killed: int | None = None
        self.num_calls = 0

    def kill(self) -> None:
        super().kill()
        self.calls_until_killed = None

    def cut_power(self, choose: Choose) -> None:
        for node in self._placed:
            old, new = node.synced.ljust(len(node.content), b"\0"), bytes(node.content)
            starts = range(0, len(new), BLOCK_BYTES)
            mixed = b"".join((new if choose(1) else old)[at : at + BLOCK_BYTES] for at in starts)
            node.content, node.synced = bytearray(mixed), mixed
        super().cut_power(choose)

    def call(self) -> bool:
        """Count a call, and return whether the process dies within it."""
        self.num_calls += 1
        if self.calls_until_killed is None:
            return False
        self.calls_until_killed -= 1
        return self.calls_until_killed <= 0

    def _either(self, work: Callable[[], None]) -> None:
        """Die before the work. The case that it was done is that of dying at the next call."""
        if self.call():
            self.kill()
            raise Killed
        work()

    def create(self, path: Path) -> "_CountedFile":  # type: ignore[override]
        self._either(lambda: None)
        return _CountedFile(self, super().create(path))

    def create_sized(self, path: Path, num_bytes: int) -> PlacedFile:
        used = sum(len(node.content) for node in self._now.values())
        if self.room_bytes is not None and used + num_bytes > self.room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.create(path)
        node = self.node(path)
        node.content[:] = bytes(num_bytes)
        self._placed.append(node)
        return _FaultyPlacedFile(self, node, self._life)

    def open_placed(self, path: Path) -> PlacedFile:
        return _FaultyPlacedFile(self, self.node(path), self._life)

    def size(self, path: Path) -> int:
        return len(self.node(path).content)

    def unlink(self, path: Path) -> None:
        self._either(lambda: None)
        super().unlink(path)

    def sync_folder(self, folder: Path) -> None:
        self._either(lambda: None)
        super().sync_folder(folder)

    def sync_node(self, node: _Inode, life: int) -> None:
        self._either(lambda: None)
        self.sync(node, life)

    def place(self, node: _Inode, life: int, offset: int, data: Buffer) -> None:
        if life != self._life:
            raise Killed
        dies = self.call()
        view = bytes(data)[: len(data) // 2] if dies else bytes(data)
        node.content[offset : offset + len(view)] = view
        if dies:
            self.kill()
            raise Killed


class _CountedFile:
    def __init__(self, disk: FaultyWeightFiles, file: _FaultyFile) -> None:
        self._disk, self._file = disk, file

    def append(self, parts: Sequence[Buffer]) -> None:
        if self._disk.call():
            data = b"".join(bytes(part) for part in parts)
            self._file.append([data[: len(data) // 2]])
            self._disk.kill()
            raise Killed
        self._file.append(parts)

    def sync(self) -> None:
        self._disk._either(self._file.sync)

    def close(self) -> None: ...


class _FaultyPlacedFile:
    def __init__(self, disk: FaultyWeightFiles, node: _Inode, life: int) -> None:
        self._disk, self._node, self._life = disk, node, life

    def read_at(self, offset: int, num_bytes: int) -> bytes:
        data = bytes(self._node.content[offset : offset + num_bytes])
        if len(data) < num_bytes:
            raise OSError(errno.EIO, "the file ends")
        return data

    def write_at(self, offset: int, data: Buffer) -> None:
        self._disk.place(self._node, self._life, offset, data)

    def sync(self) -> None:
        self._disk.sync_node(self._node, self._life)

    def close(self) -> None: ...
