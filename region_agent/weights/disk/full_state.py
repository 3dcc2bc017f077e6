"""One full state of a job on disk (a *copy*): a flat file of all tensors, and a manifest of what it must be.

    copy-<n>.state      the tensors' bytes (placement.py)
    copy-<n>.manifest   layout, policy, digest, the trainer's signed opening and closing, name of the state's file
    copy-<n>.redo       redo log: what the next version changes (redo_log.py)

The whole manifest with the highest number counts. A version is applied in this order:

   redo log written and synced -> state overwritten in place and synced -> hashed -> next manifest written ->
    redo log and older files removed

So at every moment the file is what the manifest says, or a whole redo log says what it becomes. That is not taken on
trust: opening a copy hashes all of it, and a copy without the signed digest is refused and removed. The same happens if
applying a version does not lead to its signed digest. Therefore a copy is proven, or there is none.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from blake3 import blake3

from periplus.codec.weights.layout import StateLayout
from periplus.errors import CorruptFrame, CorruptSpool, Forged
from periplus.publication import Attestation, Trust
from periplus.spool.files import explained
from periplus.values.digest import BLOCK_BYTES, digest_of, root
from periplus.values.policy import Policy
from region_agent.weights.disk import redo_log
from region_agent.weights.disk.files import PlacedFile, WeightFiles, new_file
from region_agent.weights.disk.manifest import (
    FullStateManifest,
    file_name,
    newest_manifest,
    numbered,
    reader,
    write_manifest,
)
from region_agent.weights.disk.placement import FilePlacement
from region_agent.weights.disk.redo_log import SpanChanges

HASHED_AT_ONCE_BYTES = 16 << 20
"""Bytes read at a time for hashing: whole blocks of a tensor, with few system calls and little memory. Chosen by
hand.
"""


class FullState:
    """A proven full state on disk.

    `usable` becomes False if an error left it unproven; then it must be opened again.
    """

    def __init__(
        self, layer: WeightFiles, folder: Path, manifest: FullStateManifest, number: int, file: PlacedFile
    ) -> None:
        self._layer = layer
        self._folder = folder
        self._manifest = manifest
        self._number = number
        self._file = file
        self.placement = FilePlacement(manifest.layout)
        self.usable = True

    @property
    def policy(self) -> Policy:
        """Version of the state."""
        return self._manifest.policy

    @property
    def digest(self) -> bytes:
        """State digest that the trainer signed."""
        return self._manifest.digest

    @property
    def attestation(self) -> Attestation:
        """The trainer's signed opening and closing of the version."""
        return self._manifest.attestation

    @property
    def layout(self) -> StateLayout:
        """Names, dtypes and shapes of the tensors."""
        return self._manifest.layout

    def read_span(self, placement: FilePlacement, index: int) -> bytes:
        """Return the bytes of a span of a placement of this layout. Raises: StorageError."""
        with explained(self._folder / self._manifest.file):
            return self._file.read_at(placement.span_start(index), placement.spans[index].num_bytes)

    def become(self, attestation: Attestation, changes: Iterable[SpanChanges | None]) -> None:
        """Apply a version of the same layout.

        Raises: CorruptFrame if the result lacks the signed digest, and then the copy is removed. DiskFull,
        StorageError, and what `changes` raises: the copy is unchanged if the error came before it was overwritten,
        otherwise it is unusable until it is opened again.
        """
        after = FullStateManifest(layout=self.layout, attestation=attestation, file=self._manifest.file)
        # Write the whole redo log. Until its DONE block is durable, the copy is not touched.
        path = self._folder / file_name(self._number + 1, "redo")
        with new_file(self._layer, path, sync=True) as append:
            append(redo_log.head_block(self._manifest.to_json(), after.to_json()))
            num_spans = 0
            for each in changes:
                if each is not None:
                    append(redo_log.span_block(each))
                    num_spans += 1
            append(redo_log.done_block(num_spans))
        # Overwrite the state in place. After an error here the content is unknown until the log is applied again.
        self.usable = False
        with explained(path):
            self._layer.sync_folder(self._folder)
            redo_log.apply(reader(self._layer, path), self._file.read_at, self._file.write_at)
            self._file.sync()
            self._commit(after)

    def differs(self) -> str:
        """Return how the content on disk differs from what the trainer signed; empty if it does not.

        It reads the whole state. Raises: StorageError.
        """
        with explained(self._folder / self._manifest.file):
            found = _digest(self._file, self._manifest, self.placement)
        return (
            "" if found == self.digest else f"its digest is {found.hex()}, but the signed digest is {self.digest.hex()}"
        )

    def _commit(self, after: FullStateManifest) -> None:
        found = _digest(self._file, after, self.placement)
        if found != after.digest:
            remove(self._layer, self._folder)
            raise CorruptFrame(
                f"{after.attestation.opening} leads to a state with digest {found.hex()}, but the signed digest is "
                f"{after.digest.hex()}: the copy is given up and fetched again"
            )
        write_manifest(self._layer, self._folder, after, self._number + 1)
        self._manifest, self._number, self.usable = after, self._number + 1, True
        _remove_others(self._layer, self._folder, self._number, after.file)

    def close(self) -> None:
        """Close the state's file."""
        self._file.close()


def create(
    layer: WeightFiles,
    folder: Path,
    attestation: Attestation,
    layout: StateLayout,
    changes: Iterable[SpanChanges | None],
) -> FullState:
    """Create a new copy beside the existing one, which is removed once the new one is proven.

    `changes` must fill all of it, starting from zeros. Raises: CorruptFrame if it lacks the signed digest, DiskFull,
    StorageError, and what `changes` raises; then nothing has changed.
    """
    # A number above every file here, so that nothing of the earlier copy is overwritten while it counts.
    number = 1 + max((number for number, _ in numbered(layer, folder)), default=0)
    manifest = FullStateManifest(layout=layout, attestation=attestation, file=file_name(number, "state"))
    path, placement = folder / manifest.file, FilePlacement(layout)
    with explained(path):
        file = layer.create_sized(path, placement.num_bytes)
        try:
            # The file begins as zeros: write each span's elements into it.
            for each in changes:
                if each is not None:
                    data = bytearray(file.read_at(each.start, each.end))
                    each.write_into(np.frombuffer(data, np.uint8))
                    file.write_at(each.start, data)
            # Only a state with the signed digest gets a manifest, and counts from then on.
            file.sync()
            if (found := _digest(file, manifest, placement)) != manifest.digest:
                opening = attestation.opening
                raise CorruptFrame(
                    f"the state of {opening} has digest {found.hex()}, "
                    f"but the signed digest is {manifest.digest.hex()}; it is fetched again"
                )
            write_manifest(layer, folder, manifest, number)
        except Exception:
            file.close()
            with contextlib.suppress(OSError):
                layer.unlink(path)
            raise
    _remove_others(layer, folder, number, manifest.file)
    return FullState(layer, folder, manifest, number, file)


def recover(layer: WeightFiles, folder: Path, trust: Trust) -> tuple[FullState | None, str]:
    """Return the copy that an earlier process left, finished and proven; or None and why what was there is refused.

    Raises: StorageError if the disk fails; then nothing is known of the copy, and recovery may be tried again.
    """
    with explained(folder):
        found = numbered(layer, folder)
        newest = newest_manifest(layer, folder, [number for number, kind in found if kind == "manifest"])
        # Files of a copy without a whole manifest are what an unfinished creation left.
        if newest is None:
            remove(layer, folder)
            return None, "its manifest is damaged" if any(kind == "manifest" for _, kind in found) else ""
        # The manifest must be signed as a publication is; then the file must be what the manifest says.
        number, manifest = newest
        try:
            trust.check_opening(manifest.attestation.opening)
            trust.check_closing(manifest.attestation.opening, manifest.attestation.closing)
        except Forged as error:
            remove(layer, folder)
            return None, str(error)
        # The size is checked before the file is opened, since reading beyond its end would look like a failing disk.
        path = folder / manifest.file
        if path.name not in layer.names(folder) or layer.size(path) != FilePlacement(manifest.layout).num_bytes:
            remove(layer, folder)
            return None, f"{path} is missing or has the wrong size"
        copy = FullState(layer, folder, manifest, number, layer.open_placed(path))
        try:
            # Only now is the content hashed: until then the copy is a claim.
            why = _finish(layer, folder, copy, [n for n, kind in found if kind == "redo"])
        except BaseException:
            copy.close()
            raise
        if why:
            copy.close()
            remove(layer, folder)
            return None, why
        _remove_others(layer, folder, copy._number, manifest.file)
        return copy, ""


def remove(layer: WeightFiles, folder: Path) -> None:
    """Remove every file of a copy, the manifest first. Raises: StorageError."""
    with explained(folder):
        for number, kind in sorted(numbered(layer, folder), key=lambda each: each[1] != "manifest"):
            layer.unlink(folder / file_name(number, kind))


def _finish(layer: WeightFiles, folder: Path, copy: FullState, redo_numbers: list[int]) -> str:
    """Apply a whole redo log that starts from the copy's manifest, if there is one, and prove the copy.

    Return why it is refused, or an empty text.
    """
    for number in sorted(redo_numbers, reverse=True):
        read = reader(layer, folder / file_name(number, "redo"))
        head = redo_log.read_head(read)
        # A log applies only to the copy that it was made for: it names that copy's whole manifest.
        before = copy._manifest.to_json()
        if head is None or number <= copy._number or json.loads(json.dumps(before)) != head.before:
            continue  # it is not whole, or it is already applied
        redo_log.apply(read, copy._file.read_at, copy._file.write_at)
        copy._file.sync()
        try:
            copy._commit(FullStateManifest.from_json(head.after))
        except (CorruptFrame, CorruptSpool) as error:
            return str(error)
        return ""
    return copy.differs()


def _digest(file: PlacedFile, manifest: FullStateManifest, placement: FilePlacement) -> bytes:
    def hashed() -> Iterator[tuple[str, str, tuple[int, ...], bytes]]:
        for index, line in enumerate(manifest.layout.lines):
            start = placement.line_start(index)
            yield line.name, line.dtype, line.shape, _tensor_digest(file, start, start + line.num_bytes)

    return digest_of(hashed())


def _tensor_digest(file: PlacedFile, start: int, end: int) -> bytes:
    # Leaves of the digest's Merkle tree are hashes of `BLOCK_BYTES` each; an empty tensor has one leaf.
    leaves = []
    for at in range(start, max(end, start + 1), HASHED_AT_ONCE_BYTES):
        view = memoryview(file.read_at(at, min(HASHED_AT_ONCE_BYTES, end - at)))
        starts = range(0, max(len(view), 1), BLOCK_BYTES)
        leaves += [blake3(view[first : first + BLOCK_BYTES]).digest() for first in starts]
    return root(leaves)


def _remove_others(layer: WeightFiles, folder: Path, number: int, state_file: str) -> None:
    """Remove files that an earlier or unfinished version left.

    A file that cannot be removed now is removed next time.
    """
    keep = (file_name(number, "manifest"), state_file)
    with contextlib.suppress(OSError):
        for each, kind in numbered(layer, folder):
            if file_name(each, kind) not in keep:
                layer.unlink(folder / file_name(each, kind))
