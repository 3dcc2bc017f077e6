"""What an agent offers: accelerators of its driver, groups of cores within control groups, declared devices."""

import os
from pathlib import Path
from typing import Any

import pytest

from periplus.errors import ConfigError
from periplus.process import host_limits
from periplus.values.machine import Device, DeviceFamily, EngineVersion, Machine
from region_agent.config import AgentConfig
from region_agent.control import engines
from region_agent.control.accelerators import Accelerators
from region_agent.control.inventory import core_groups, inventory, trainer_threads

GIB = 1 << 30
FILE = """
schema: periplus.devices/1
machines:
  - devices:
      - {kind: cuda, model: NVIDIA L4, memory_gib: 22.5, uuid: GPU-a}
      - {kind: cuda, index: 3, model: NVIDIA L4, memory_gib: 22.5}
  - name: node-2
    num_cores: 16
    memory_gib: 64
    devices: [{kind: cpu, cores: [0, 1]}]
"""


class Driver:
    """Stands in for the module `pynvml` and the cards behind it. A card is a name, or an error that it answers with."""

    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_FEATURE_ENABLED, NVML_NVLINK_MAX_LINKS = 12, 1, 4

    class NVMLError(Exception):
        def __init__(self, value: int, words: str = "Unknown Error") -> None:
            super().__init__(words)
            self.value = value

    def __init__(self, *cards: str) -> None:
        self.cards: list[Any] = list(cards)
        self.fails: Exception | None = None
        self.partitioned: set[int] = set()
        self.damaged: set[int] = set()
        self.linked: set[int] = set()
        self.open = 0

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.fails
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if isinstance(self.cards[index], Exception):
            raise self.cards[index]
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return str(self.cards[handle])

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return type("Memory", (), {"total": 24 * GIB})

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:
        if handle == 0:
            raise self.NVMLError(3, "Not Supported")
        return int(handle in self.partitioned), 0

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if handle not in self.linked:
            raise self.NVMLError(3, "Not Supported")
        return int(link == 2)

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:
        if handle == 0:
            raise self.NVMLError(3, "Not Supported")
        return 0, 0, 0, int(handle in self.damaged)


def test_accelerators_are_what_the_driver_says() -> None:
    driver = Driver("NVIDIA L4", "NVIDIA H100", "NVIDIA H100", "NVIDIA H100")
    driver.partitioned, driver.linked, driver.damaged = {2}, {3}, {3}
    first, second, third = Accelerators(driver).read(5.0)
    assert (first.index, first.kind, first.model, first.uuid) == (0, DeviceFamily.CUDA, "NVIDIA L4", "GPU-0")
    assert (first.memory_bytes, first.driver, first.problem, first.has_nvlink) == (24 * GIB, "580.95", "", False)
    assert (second.index, third.index, third.has_nvlink) == (1, 3, True), "a partitioned card is not offered"
    assert "could not be remapped" in third.problem
    assert driver.open == 0


def test_a_card_that_falls_silent_keeps_its_last_values_with_why_and_since_when() -> None:
    driver = Driver("NVIDIA L4", "NVIDIA L4")
    accelerators = Accelerators(driver)
    assert [each.problem for each in accelerators.read(10.0)] == ["", ""]
    driver.cards[1] = driver.NVMLError(15, "GPU is lost")
    _, lost = accelerators.read(40.0)
    assert (lost.uuid, lost.problem, lost.problem_s) == ("GPU-1", "the driver says: GPU is lost", 30.0)
    _, lost = accelerators.read(70.0)
    assert lost.problem_s == 60.0
    driver.fails = driver.NVMLError(9, "Driver Not Loaded")
    gone, lost = accelerators.read(80.0)
    assert (gone.problem, gone.problem_s) == ("the driver says: Driver Not Loaded", 10.0)
    assert lost.problem_s == 70.0
    driver.fails, driver.cards[1] = None, "NVIDIA L4"
    assert [(each.problem, each.problem_s) for each in accelerators.read(90.0)] == [("", 0.0), ("", 0.0)]


@pytest.mark.parametrize(("value", "warns"), [(12, False), (9, True)])
def test_a_machine_without_a_driver_has_no_accelerator(
    value: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver("NVIDIA L4")
    driver.fails = driver.NVMLError(value)
    assert Accelerators(driver).read(0.0) == ()
    assert bool(caplog.records) == warns


def config(**changes: Any) -> AgentConfig:
    return AgentConfig(
        region="eu",
        coordinator="c:1",
        listen="a:1",
        advertise="",
        work_dir=Path(),
        state_dir=Path(),
        wan="",
        memory_bytes=8 * GIB,
        stop_grace_s=1.0,
        restart_backoff_s=1.0,
        **{"num_cores": 5, "worker_threads": 2, **changes},
    )


def test_cores_come_in_groups_of_a_workers_threads() -> None:
    groups = core_groups(config(), (0, 1, 2, 5, 6, 7))
    assert [(each.index, each.kind, each.cores) for each in groups] == [
        (0, DeviceFamily.CPU, (0, 1)),
        (1, DeviceFamily.CPU, (2, 5)),
        (2, DeviceFamily.CPU, (6,)),
    ]
    for shared in (config(shared_cores=True), config(num_cores=7)):
        assert {each.cores for each in core_groups(shared, (0, 1, 2, 5, 6, 7))} == {()}


@pytest.mark.parametrize(
    ("kind", "cores", "given", "threads"),
    [("cuda", 16, None, 4), ("cuda", 64, None, 8), ("cuda", 2, None, 2), ("emulated", 16, None, 2), ("cuda", 64, 3, 3)],
)
def test_a_trainer_beside_gpus_encodes_weights_with_half_of_its_share_of_the_cores(
    kind: str, cores: int, given: int | None, threads: int
) -> None:
    cards = tuple(Device(index=index, kind=DeviceFamily(kind), memory_bytes=80 * GIB) for index in range(2))
    own = Machine(name="m", num_cores=cores, memory_bytes=8 * GIB, devices=cards)
    assert trainer_threads(config(num_cores=cores, trainer_threads=given), own) == threads


def offered(driver: Driver, **changes: Any) -> Any:
    torch = engines.InstalledEngine(name="torch", version="2.13.0", python="/python")
    return inventory(config(**changes), (torch,), Accelerators(driver), 0.0)


def test_a_machine_offers_its_accelerators_or_else_its_cores() -> None:
    own = offered(Driver("NVIDIA L4"), allow_code=True, replica_store="s3://bucket/runs")
    assert ([each.kind for each in own.own.devices], own.allows_own_code) == ([DeviceFamily.CUDA], True)
    assert own.replica_store == "s3://bucket/runs"
    assert own.own.engines == (EngineVersion(name="torch", version="2.13.0"),)
    assert [each.kind for each in offered(Driver()).own.devices] == [DeviceFamily.CPU] * 3


def test_declared_devices_take_the_place_of_those_that_are_found(tmp_path: Path) -> None:
    path = tmp_path / "devices.yaml"
    path.write_text(FILE)
    own, other = offered(Driver("NVIDIA H100"), devices_file=path).machines
    assert [(each.index, each.uuid, each.memory_bytes) for each in own.devices] == [
        (0, "GPU-a", int(22.5 * GIB)),
        (3, "", int(22.5 * GIB)),
    ]
    assert (own.num_cores, own.has_launcher, own.engines[0].name) == (5, True, "torch")
    assert (other.name, other.num_cores, other.memory_bytes) == ("node-2", 16, 64 * GIB)
    assert (other.has_launcher, other.devices[0].cores) == (False, (0, 1))


@pytest.mark.parametrize(
    ("was", "becomes", "why"),
    [
        ("index: 3", "index: 0", "two cuda devices have the index 0"),
        (", uuid: GPU-a", ", cores: [1]", "an accelerator has no cores"),
        ("model: NVIDIA L4, memory_gib: 22.5, uuid", "uuid", "needs model and memory_gib"),
        ("kind: cpu,", "kind: cpu, memory_gib: 1,", "neither model, uuid nor memory_gib"),
        ("  - devices:", "  - name: other\n    devices:", "the first machine is the agent's own"),
        ("    num_cores: 16\n", "", "needs name, num_cores and memory_gib"),
        ("devices/1", "fleet/1", "periplus.devices/1"),
        ("kind: cpu", "kind: tpu", "kind"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_its_place(was: str, becomes: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "devices.yaml"
    assert was in FILE
    path.write_text(FILE.replace(was, becomes))
    with pytest.raises(ConfigError, match=r"devices\.yaml") as raised:
        offered(Driver(), devices_file=path)
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("groups", "files", "cores", "gib"),
    [
        ("0::/pod/job\n", {"pod/cpu.max": "150000 100000", "pod/job/cpu.max": "max 100000"}, 2, None),
        ("0::/\n", {"cpu.max": "50000 100000", "memory.max": str(3 * GIB)}, 1, 3),
        ("4:cpu,cpuacct:/a\n0::/\n", {"cpu,cpuacct/a/cpu.cfs_quota_us": "100000"}, 1, None),
        (
            "5:memory:/a\n",
            {"memory/a/memory.limit_in_bytes": str(2 * GIB), "memory/memory.limit_in_bytes": "9" * 18},
            0,
            2,
        ),
        ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, 0, None),
    ],
)
def test_control_groups_limit_cores_and_memory(
    groups: str, files: dict[str, str], cores: int, gib: int | None, tmp_path: Path
) -> None:
    own, root = tmp_path / "own", tmp_path / "root"
    own.write_text(groups)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    there = len(host_limits.usable_cores())
    assert host_limits.num_cores(root, own) == min(there, cores or there)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host_limits.memory_bytes(root, own) == (gib * GIB if gib else whole)
