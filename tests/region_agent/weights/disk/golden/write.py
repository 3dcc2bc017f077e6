"""Writes the golden store: `python -m tests.region_agent.weights.disk.golden.write`. Only for a new format."""

from pathlib import Path

from periplus.publication import PublisherKey
from tests.support.faulty_files import Killed
from tests.support.gateway.faulty_weights import FaultyWeightFiles
from tests.support.gateway.weight_stores import WeightStore
from tests.support.publication.versions import Versions, small_states

HERE = Path(__file__).parent
FOLDER = Path("weights")


def versions() -> Versions:
    return Versions(small_states(3, num_elements=50), key=PublisherKey.from_private_bytes(bytes(range(32))))


def written() -> dict[str, bytes]:
    """A bundle, a copy and two deltas, of a process that died while it overwrote the copy: a redo log is left."""
    made = versions()
    for call in range(1, 100):
        disk = FaultyWeightFiles()
        store = WeightStore.open(FOLDER, made.trust, chain_versions=1, layer=disk)
        store.see_fork(3)
        for publication in (made.bundle(), made.anchor(0), made.delta(0, 1)):
            store.put(publication)
            store.settle()
        before = _copy_of(disk)
        store.put(made.delta(1, 2))
        disk.calls_until_killed = call
        try:
            store.settle()
        except Killed:
            if _copy_of(disk) != before:
                return {path.name: bytes(disk.content(path)) for path in disk.paths()}
    raise AssertionError("it never died while it overwrote the copy")


def _copy_of(disk: FaultyWeightFiles) -> bytes:
    (path,) = (path for path in disk.paths() if path.suffix == ".state")
    return bytes(disk.content(path))


if __name__ == "__main__":
    for name, data in written().items():
        (HERE / name).write_bytes(data)
