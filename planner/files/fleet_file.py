"""Fleet files (`periplus.fleet/1`, YAML or JSON): conversion between parsed files and `Fleet` values.

Units are in the keys' names: bytes, seconds, dollars; 1 GB is 10^9 bytes. A region lists its machines. A region that
gives only cores and memory runs worker processes on its cores instead of accelerators. A file may define accelerator
types that the packaged table lacks, or replace packaged ones.

The fields of `Region`, `Machines` and `GpuType` are their keys, with ranges; a link may state its rate in bits, which
`Link` does not. All docstrings of keys become descriptions in `periplus/schemas/fleet.schema.json`. This module also
checks what involves several entries: names are unique and known, each direction of a link appears once, and each link
has exactly one rate and connects two regions of the fleet. Pairs of regions that were not measured have no link.
Nothing here opens a file.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from periplus.config import loading
from periplus.config.loading import Config
from periplus.errors import ConfigError
from planner.devices.catalogue import gpu_name, gpu_types
from planner.devices.catalogue.gpus import CPU, CPU_CORE, cpu_type
from planner.problem.fleet import Fleet, Link, Machines, Region
from planner.problem.hardware import GpuType
from planner.problem.ranges import MAX_MACHINES_ENTRIES, MAX_REGIONS, Name, RoundTripS, Usd, WanBytesPerS, some

SCHEMA = "periplus.fleet/1"
"""Name and version of the file's format."""


class LinkEntry(Config):
    """Measured link from one region's gateway to another's, in one direction. Exactly one of bytes_per_s and
    throughput_bits_per_s is given."""

    src_region: Name
    """Region that sends."""
    dst_region: Name
    """Region that receives."""
    rtt_s: RoundTripS
    """Round-trip time."""
    bytes_per_s: WanBytesPerS | None = None
    """Throughput in bytes per second: the tenth percentile if there are several samples."""
    throughput_bits_per_s: float | None = Field(default=None, ge=8, le=8e13)
    """Throughput in bits per second, in place of bytes_per_s."""
    age_s: float | None = Field(default=None, ge=0, le=1e10)
    """Seconds since the last measurement. null if they are unknown."""
    usd_per_gbyte: Usd = 0.0
    """Egress price of this link in dollars per 10^9 bytes."""


class FleetFile(Config):
    """The regions that a plan may use, their machines, and the measured links between them."""

    gpu_types: tuple[GpuType, ...] = Field(default=(), max_length=MAX_MACHINES_ENTRIES)
    """Accelerator types that this file defines."""
    regions: tuple[Region, ...] = Field(min_length=1, max_length=MAX_REGIONS)
    """All regions. Each name appears once."""
    links: tuple[LinkEntry, ...] = Field(default=(), max_length=MAX_REGIONS**2)
    """Directed links between regions. Pairs that were not measured are left out."""


def fleet_of(tree: object, source: str, cpu_core: GpuType = CPU_CORE) -> Fleet:
    """Return the fleet of a parsed file. `cpu_core` is the type of one core, for regions whose devices are cores.

    Raises: ConfigError, which names `source` and lists every contradiction, one per line.
    """
    keys = loading.check_schema(tree, SCHEMA, source)
    file = loading.validate(FleetFile, keys, source)
    # The fabric of several machines has no default: it counts whether the file gives it.
    has_fabric = {region["name"] for region in keys["regions"] if "fabric_bytes_per_s" in region}
    defined = {gpu.name: gpu for gpu in file.gpu_types}
    loading.refuse(source, itertools.chain(_contradictions(file, has_fabric), _unknown_gpus(file, defined)))
    types = dict(defined)
    regions = tuple(_region(region, types, cpu_core) for region in file.regions)
    return Fleet(regions=regions, links=tuple(map(_link, file.links)), gpu_types=dict(sorted(types.items())))


def to_tree(fleet: Fleet) -> dict[str, Any]:
    """Return a fleet as plain values that `fleet_of` reads as the same fleet.

    Accelerator types that equal the packaged ones are referred to by name and not written out.
    """
    packaged = gpu_types()
    own = [gpu for name, gpu in sorted(fleet.gpu_types.items()) if packaged.get(name) != gpu]
    return {
        "schema": SCHEMA,
        **({"gpu_types": [loading.tree_of(gpu) for gpu in own]} if own else {}),
        "regions": [
            loading.tree_of(region) | {"fabric_bytes_per_s": region.fabric_bytes_per_s} for region in fleet.regions
        ],
        "links": [loading.tree_of(link) for link in fleet.links],
    }


def fleet_schema() -> dict[str, Any]:
    """Return the JSON schema of fleet files, for editors and for `periplus/schemas/fleet.schema.json`."""
    schema = FleetFile.model_json_schema()
    schema["properties"] = {"schema": {"const": SCHEMA}, **schema["properties"]}
    schema["required"] = ["schema", *schema["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": SCHEMA, **schema}


# ---- reading ---------------------------------------------------------------------------------------------------------


def _contradictions(file: FleetFile, has_fabric: Collection[str]) -> Iterator[str]:
    for what, names in (("accelerator", [g.name for g in file.gpu_types]), ("region", [r.name for r in file.regions])):
        for name, times in Counter(names).items():
            if times > 1:
                yield f"the {what} {name} is there {times} times; give each name once"
    # The limit of one region's list is in its entry; this one is for all regions together.
    known = {region.name for region in file.regions}
    num = sum(len(region.machines) for region in file.regions)
    if num > MAX_MACHINES_ENTRIES:
        yield f"its regions have {num:,} entries of machines, but may have {MAX_MACHINES_ENTRIES:,} together"
    for ends, times in Counter((link.src_region, link.dst_region) for link in file.links).items():
        if times > 1:
            yield f"the link from {ends[0]} to {ends[1]} is there {times} times; give each direction once"
    for region in file.regions:
        yield from _region_refusals(region, region.name in has_fabric)
    for link in file.links:
        yield from _link_refusals(link, known)


def _region_refusals(region: Region, has_fabric: bool) -> Iterator[str]:
    num = sum(machines.num_machines for machines in region.machines)
    if num == 0 and region.num_cores == 0:
        yield f"the region {region.name} has no machines and no cores; give machines, or num_cores, or leave it out"
    if num > 1 and not has_fabric:
        yield (
            f"the region {region.name} has {num} machines but no fabric_bytes_per_s; "
            "give what one of their devices sends to another machine, in bytes a second"
        )


def _link_refusals(link: LinkEntry, known: set[str]) -> Iterator[str]:
    where = f"the link from {link.src_region} to {link.dst_region}"
    if (link.bytes_per_s is None) == (link.throughput_bits_per_s is None):
        if link.bytes_per_s is None:
            yield f"{where} has no rate; give bytes_per_s or throughput_bits_per_s, or leave out what nobody measured"
        else:
            yield f"{where} has both bytes_per_s and throughput_bits_per_s; leave out one of the two"
    if link.src_region == link.dst_region:
        yield f"{where} ends where it begins; the network inside a region is its fabric_bytes_per_s"
    # A link from an unknown region to itself is reported once.
    for name in dict.fromkeys((link.src_region, link.dst_region)):
        if name not in known:
            yield f"{where} names {name}, which is no region of this fleet; its regions are {some(sorted(known))}"


def _unknown_gpus(file: FleetFile, defined: Mapping[str, GpuType]) -> Iterator[str]:
    for region in file.regions:
        for machines in region.machines:
            try:
                gpu_name(machines.gpu, defined)
            except ConfigError as error:
                yield f"the region {region.name}: {error}"


def _region(region: Region, types: dict[str, GpuType], cpu_core: GpuType) -> Region:
    """Return a file's region with the names of its accelerator types in `types`, to which these are added."""
    packaged = {**gpu_types(), CPU: cpu_core}
    machines = []
    for each in region.machines:
        name = gpu_name(each.gpu, types)
        # Types of the file replace packaged ones of the same name.
        if name not in types:
            types[name] = packaged[name]
        machines.append(replace(each, gpu=name))
    # A region of cores only: its host is one machine, whose devices are worker processes.
    if not machines:
        num, gpu = cpu_type(cpu_core, num_cores=region.num_cores, memory_bytes=region.memory_bytes)
        types[gpu.name] = gpu
        machines.append(Machines(gpu=gpu.name, gpus_per_machine=num, num_machines=1))
    return replace(region, machines=tuple(machines))


def _link(entry: LinkEntry) -> Link:
    values = entry.model_dump(exclude={"throughput_bits_per_s", "bytes_per_s"})
    rate = entry.bytes_per_s if entry.throughput_bits_per_s is None else entry.throughput_bits_per_s / 8
    assert rate is not None
    return Link(**values, bytes_per_s=rate)
