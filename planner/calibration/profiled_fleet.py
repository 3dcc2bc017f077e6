"""A fleet as one job's work runs on it: device types with the efficiencies of the profiles of the job's model."""

from collections.abc import Mapping
from dataclasses import replace

from periplus.errors import ConfigError
from periplus.values.profile import Profile
from planner.calibration.efficiencies import calibrated
from planner.devices.catalogue import CPU, gpu_name, gpu_types
from planner.problem.architecture import Architecture
from planner.problem.fleet import Fleet, Region
from planner.problem.hardware import EMULATED, GpuType


def profiled(fleet: Fleet, arch: Architecture, profiles: Mapping[str, Profile], *, lora_rank: int = 0) -> Fleet:
    """Return the fleet with the types that were measured for a model, in place of the packaged ones.

    `profiles` has the profile of that model by region. Cores are those of a region. Of an accelerator that several
    regions have, the newest profile counts for all. Emulated devices have a pace of their own, so that only what a
    process does beside the model is taken from the profile.
    """
    types, regions = dict(fleet.gpu_types), []
    newest = sorted(profiles.items(), key=lambda item: (item[1].measured_at_s, item[0]))
    for _, profile in newest:
        name = _accelerator(profile)
        if name in types:
            types[name] = calibrated(types[name], arch, profile, lora_rank=lora_rank).gpu
    for region in fleet.regions:
        found = profiles.get(region.name)
        if found is None or found.device:
            regions.append(region)
            continue
        core = calibrated(fleet.gpu_types.get(CPU) or gpu_types()[CPU], arch, found, lora_rank=lora_rank).gpu
        name = f"core of {region.name}"
        types[name] = replace(core, name=name)
        types |= {each.name: _with_overheads(each, core) for each in _emulated(fleet, region)}
        regions.append(replace(region, core=name))
    return replace(fleet, regions=tuple(regions), gpu_types=types)


def without_overheads(gpu: GpuType) -> GpuType:
    """Return the type as if processes did nothing beside the model's work."""
    none = {"sample_overhead_s": 0.0, "step_overhead_s": 0.0, "version_overhead_s": 0.0}
    training = None if gpu.training is None else replace(gpu.training, **none)
    return replace(gpu, efficiency=replace(gpu.efficiency, **none), training=training)


def _accelerator(profile: Profile) -> str:
    try:
        return gpu_name(profile.device) if profile.device else ""
    except ConfigError:
        return ""  # a fleet has no machine of a type that is not known


def _emulated(fleet: Fleet, region: Region) -> list[GpuType]:
    return [fleet.gpu_types[each.gpu] for each in region.machines if each.gpu.startswith(EMULATED)]


def _with_overheads(gpu: GpuType, core: GpuType) -> GpuType:
    own, steps = core.efficiency, core.for_training.efficiency
    fit = replace(gpu.efficiency, sample_overhead_s=own.sample_overhead_s, version_overhead_s=own.version_overhead_s)
    trains = replace(gpu.efficiency, sample_overhead_s=steps.sample_overhead_s, step_overhead_s=steps.step_overhead_s)
    return replace(
        gpu, efficiency=fit, training=trains, source=f"emulated; beside the model's work: {core.source}"[:500]
    )
