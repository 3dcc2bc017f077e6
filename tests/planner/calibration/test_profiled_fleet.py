"""A fleet takes what was measured from where it was measured: cores by region, accelerators by type."""

from dataclasses import replace

from periplus.values.machine import Device, DeviceFamily
from periplus.values.profile import GenerationRow, HostFigures, Profile
from planner.calibration.efficiencies import INTAKE, WITH_PROOF, WITH_STREAM, WITH_THREADS
from planner.calibration.profiled_fleet import profiled, without_overheads
from planner.devices.catalogue import architecture, gpu_types, type_of
from planner.jobs.hosts import core_of
from planner.problem.fleet import Fleet, Machines, Region
from tests.support.planner.hosts import mesh

QWEN = architecture("builtin:qwen3-tiny")
SLOW_L4 = type_of(Device(index=0, kind=DeviceFamily.EMULATED, model="L4", slowdown=100.0))
ROW = GenerationRow(num_samples=128, num_slots=128, prompt_tokens=8, completion_tokens=24, seconds=0.01, spread=0.0)
PROFILE = Profile(
    model="m",
    engine="torch",
    machine="rack-7",
    device="",
    measured_at_s=1.0,
    versions={},
    generation=(ROW,),
    host=HostFigures(sample_s=0.1, step_s=0.2, load_s=0.3),
)


def fleet() -> Fleet:
    owned = {"a": (), "b": (), "c": (SLOW_L4.name,), "d": ("L4",), "e": ("L4",)}
    regions = [
        Region(
            name=name,
            machines=tuple(Machines(gpu=gpu, gpus_per_machine=2, num_machines=1) for gpu in gpus),
            num_cores=4,
        )
        for name, gpus in owned.items()
    ]
    return replace(mesh(regions), gpu_types={"L4": gpu_types()["L4"], SLOW_L4.name: SLOW_L4})


def region(found: Fleet, name: str) -> Region:
    one = found.region(name)
    assert one is not None
    return one


def test_cores_are_those_of_the_region_that_was_measured() -> None:
    found = profiled(fleet(), QWEN, {"a": PROFILE})
    measured, other = (core_of(found, region(found, name)) for name in "ab")
    assert measured.source
    assert measured.efficiency.sample_overhead_s == 0.1 * WITH_STREAM
    assert other == gpu_types()["cpu"]


def test_an_accelerator_is_measured_for_all_regions_and_the_newest_counts() -> None:
    old = replace(PROFILE, device="NVIDIA L4", host=HostFigures(sample_s=0.7))
    new = replace(PROFILE, device="NVIDIA L4", measured_at_s=2.0)
    for profiles in ({"d": old, "e": new}, {"e": new, "d": old}):
        found = profiled(fleet(), QWEN, profiles)
        assert found.gpu_types["L4"].efficiency.sample_overhead_s == 0.1 * WITH_STREAM
        assert core_of(found, region(found, "d")) == gpu_types()["cpu"], "the host's cores were not measured"


def test_a_card_that_is_not_known_changes_nothing() -> None:
    assert profiled(fleet(), QWEN, {"d": replace(PROFILE, device="Voodoo 2")}) == fleet()


def test_an_emulated_device_keeps_its_pace_and_gets_what_its_host_does_beside_the_model() -> None:
    found = profiled(fleet(), QWEN, {"c": PROFILE}).gpu_types[SLOW_L4.name]
    fit, trains = found.efficiency, found.for_training.efficiency
    assert (fit.sample_overhead_s, fit.version_overhead_s) == (0.1 * WITH_STREAM, 0.3 * WITH_PROOF)
    assert (trains.sample_overhead_s, trains.step_overhead_s) == (0.1 * INTAKE, 0.2 * WITH_THREADS)
    assert replace(without_overheads(found), source="", training=None) == SLOW_L4
