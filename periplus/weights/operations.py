"""The operations of `periplus weights` without their output text: files in, files out.

Memory is bounded whatever the size of a checkpoint: tensors are memory-mapped, and besides them a few spans of a delta
are held. `apply` writes the base's tensors into new files, overwrites what changed span by span, and hashes the content
of these files before they get their name. `fold` does the same in a scratch file, which it then compares with the base.
A base is hashed each time, because a delta on another base would decode to noise. Hashing and encoding take all cores.
"""

import itertools
import math
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from periplus.codec.weights.encoder import Encoder
from periplus.codec.weights.floors import floors
from periplus.codec.weights.layout import StateLayout, layout_of
from periplus.errors import CorruptFrame, StorageError, WrongBase
from periplus.values.weight_state import WeightState, content_bytes
from periplus.view import units
from periplus.weights.checkpoint import CheckpointDirectory, copy_others, open_checkpoint, open_target, plan
from periplus.weights.files import DeltaReader, DeltaWriter, FileHead, FileTail, FloorBits, open_delta
from periplus.weights.output import making_directory, making_file
from periplus.weights.progress import Progress, Watched
from periplus.weights.reading import Delta, digest, finished, inspect, opened
from periplus.weights.replay import ReplayedState, copy_tensors, overwrite


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Result of `apply`. `left_out` are the files of the base that hold other weights, and were not copied."""

    delta: Delta
    left_out: tuple[Path, ...]


def diff(old: Path, new: Path, output: Path, *, force: bool, with_floors: bool, progress: Progress) -> Delta:
    """Write the delta from `old` to `new` into the file `output`.

    Raises: NotFound, CorruptFrame, Conflict, StorageError.
    """
    before, after = opened(old), opened(new)
    with making_file(output, force=force) as work:
        base_digest = digest(before.state, f"hashing {old}", progress)
        result_digest = digest(after.state, f"hashing {new}", progress)
        digests = base_digest, result_digest
        return _encode(before.state, after.state, digests, work.product, output, with_floors, progress)


def apply(old: Path, file: Path, output: Path, *, force: bool, progress: Progress) -> Applied:
    """Write `old`, with the delta in `file` applied, into the directory `output`.

    Raises: NotFound, CorruptFrame, WrongBase, Conflict, ConfigError, StorageError.
    """
    # The whole file is proved first: a damaged one is found before anything is written.
    _read_through([file], progress)
    with open_delta(file) as delta:
        before, layout = opened(old), delta.head.layout
        with making_directory(output, [old, file], force=force) as work:
            # The cheap refusals come before the work, and the room on disk before the first file.
            _check_base(before, delta, progress)
            planned = plan(before, layout)
            _check_room(layout, work.folder)
            work.product.mkdir()
            copy_others(before, planned, work.product)
            with open_target(work.product, planned.files) as target:
                # First the base's bytes, then what changed on top of them.
                copy_tensors(before.state, layout, target, progress)
                overwrite(before.state, delta, target, progress)
                target.sync()
            # What is hashed are the written files, opened anew, and not what should be in them.
            _check_result(open_checkpoint(work.product).state, delta, progress)
        return Applied(delta=finished(delta), left_out=planned.left_out)


def fold(
    base: Path, files: Sequence[Path], output: Path, *, force: bool, with_floors: bool, progress: Progress
) -> Delta:
    """Write into `output` one delta from `base` to the state that the deltas in `files`, applied in order, lead to.

    Raises: NotFound, CorruptFrame, WrongBase, Conflict, StorageError.
    """
    _read_through(files, progress)
    with ExitStack() as stack:
        deltas = [stack.enter_context(open_delta(file)) for file in files]
        _check_chain(deltas)
        before = opened(base)
        work = stack.enter_context(making_file(output, force=force))
        _check_base(before, deltas[0], progress)
        _check_room(deltas[-1].head.layout, work.folder)
        # The state after each delta lies in a scratch file, since it need not fit into memory.
        scratch = ReplayedState(work.folder, before.state)
        for delta in deltas:
            scratch.advance(delta, progress)
        _check_result(scratch.state, deltas[-1], progress)
        digests = deltas[0].head.base_digest, deltas[-1].head.result_digest
        return _encode(before.state, scratch.state, digests, work.product, output, with_floors, progress)


# ---- steps -----------------------------------------------------------------------------------------------------------


def _encode(
    base: WeightState,
    new: WeightState,
    digests: tuple[bytes, bytes],
    path: Path,
    destination: Path,
    with_floors: bool,
    progress: Progress,
) -> Delta:
    encoder = Encoder(base, new, num_threads=os.cpu_count() or 1)
    head = FileHead(
        base_digest=digests[0], result_digest=digests[1], num_parts=encoder.num_parts, layout=layout_of(new)
    )
    total_bytes = content_bytes(new)
    with path.open("xb") as file:
        writer = DeltaWriter(file, head)
        for index, part in enumerate(encoder.parts()):
            writer.part(part)
            progress("encoding", total_bytes * index // head.num_parts, total_bytes)
        # The counts and the payload's size are known only after the last part, so that they stand at the end.
        tail = FileTail(
            num_elements=sum(math.prod(line.shape) for line in head.layout.lines),
            num_changed=encoder.stats.num_changed,
            payload_bytes=writer.payload_bytes,
            floors=_floors(base, new, progress) if with_floors else None,
        )
        writer.finish(tail)
        file.flush()
        os.fsync(file.fileno())
    return Delta(path=destination, file_bytes=writer.file_bytes, head=head, tail=tail)


def _floors(base: WeightState, new: WeightState, progress: Progress) -> FloorBits:
    done_bytes, total_bytes = 0, content_bytes(new)

    def read(num_bytes: int) -> None:
        nonlocal done_bytes
        progress("computing entropy floors", done_bytes, total_bytes)
        done_bytes += num_bytes

    # Entropies are computed tensor by tensor: watching the reads of the new state shows the progress.
    found = floors(base, Watched(new, read))
    return FloorBits(
        num_changed=found.num_changed,
        iid_bits=found.iid_bits,
        conditional_bits=found.conditional_bits,
        conditional_with_tables_bits=found.conditional_with_tables_bits,
    )


# ---- checks ----------------------------------------------------------------------------------------------------------


def _read_through(files: Sequence[Path], progress: Progress) -> None:
    """Read each file to its end, so that damage is found before gigabytes are copied.

    A pipe, which can be read only once, is checked while it is applied.
    """
    for file in files:
        if file.is_file():
            inspect(file, progress)


def _check_base(base: CheckpointDirectory, delta: DeltaReader, progress: Progress) -> None:
    found = digest(base.state, f"hashing {base.directory}", progress)
    if found == delta.head.base_digest:
        return
    # The most likely mistake gets its own message.
    if found == delta.head.result_digest:
        raise WrongBase(f"{base.directory} is what {delta.path} leads to ({found.hex()}): there is nothing to apply")
    raise WrongBase(
        f"{base.directory} has the state digest {found.hex()}, {delta.path} was made from "
        f"{delta.head.base_digest.hex()}; give the checkpoint with that digest"
    )


def _check_chain(deltas: Sequence[DeltaReader]) -> None:
    for before, after in itertools.pairwise(deltas):
        if before.head.result_digest != after.head.base_digest:
            raise WrongBase(
                f"{before.path} leads to {before.head.result_digest.hex()}, {after.path} is a delta of "
                f"{after.head.base_digest.hex()}; give all deltas, in their order"
            )


def _check_room(layout: StateLayout, folder: Path) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if layout.content_bytes > free_bytes:
        raise StorageError(
            f"the weights have {units.size(layout.content_bytes)}, {folder.parent} has {units.size(free_bytes)} free; "
            "make room, or give a place on another disk"
        )


def _check_result(state: WeightState, delta: DeltaReader, progress: Progress) -> None:
    found = digest(state, "checking the result", progress)
    if found != delta.head.result_digest:
        raise CorruptFrame(
            f"{delta.path} leads to the state digest {found.hex()}, it promises {delta.head.result_digest.hex()}; "
            "copy it again, or make it again"
        )
