import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.errors import ConfigError
from planner.devices.catalogue import gpu_types
from planner.devices.catalogue.gpus import CPU_CORE
from planner.files.fleet_file import SCHEMA, fleet_of, fleet_schema, to_tree
from planner.files.loaders import load_fleet
from planner.problem.device_classes import classes_of
from planner.problem.fleet import Fleet, Link, Machines, Region
from planner.problem.hardware import DEFAULT_EFFICIENCY, Efficiency, GpuType

EXAMPLES = Path(__file__).parents[3] / "examples"
SCHEMAS = Path(__file__).parents[3] / "periplus" / "schemas"
Change = Callable[[dict[str, Any]], object]


def tree() -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "regions": [
            {
                "name": "a",
                "machines": [{"gpu": "NVIDIA A100-SXM4-40GB", "gpus_per_machine": 8, "num_machines": 2}],
                "fabric_bytes_per_s": 6.25e9,
            },
            {"name": "b", "machines": [{"gpu": "L4", "gpus_per_machine": 1, "num_machines": 1}]},
        ],
        "links": [{"src_region": "a", "dst_region": "b", "rtt_s": 0.08, "bytes_per_s": 1e8}],
    }


def test_a_fleet_is_what_its_file_says() -> None:
    fleet = fleet_of(tree(), "fleet.yaml")
    a, b = fleet.regions
    assert a.machines == (Machines(gpu="A100-40GB-SXM", gpus_per_machine=8, num_machines=2),)
    assert a.fabric_bytes_per_s == 6.25e9
    assert (b.num_cores, b.is_public, fleet.num_gpus) == (0, True, 17)
    assert fleet.links == (Link(src_region="a", dst_region="b", rtt_s=0.08, bytes_per_s=1e8),)
    assert set(fleet.gpu_types) == {"A100-40GB-SXM", "L4"}


def test_a_rate_in_bits_is_an_eighth_in_bytes() -> None:
    said = tree()
    said["links"][0] = {"src_region": "a", "dst_region": "b", "rtt_s": 0.0, "throughput_bits_per_s": 8e8}
    assert fleet_of(said, "f").links[0].bytes_per_s == 1e8


def test_a_region_of_cores_alone_has_a_device_a_core() -> None:
    old = {"schema": SCHEMA, "regions": [{"name": "x", "num_cores": 4, "memory_bytes": 16 << 30}]}
    fleet = fleet_of(old, "f")
    (region,) = fleet.regions
    assert (region.num_cores, region.memory_bytes, fleet.num_gpus) == (4, 16 << 30, 4)
    gpu = fleet.gpu_types[region.machines[0].gpu]
    assert gpu.is_cpu
    assert (gpu.memory_bytes, gpu.matmul_flop_per_s) == (4 << 30, CPU_CORE.matmul_flop_per_s)
    assert len(classes_of(fleet)) == 1


def test_what_a_core_does_comes_in_as_an_argument() -> None:
    fast = replace(CPU_CORE, matmul_flop_per_s=1e12)
    cores = {"schema": SCHEMA, "regions": [{"name": "x", "num_cores": 2}]}
    named = {
        "schema": SCHEMA,
        "regions": [{"name": "x", "machines": [{"gpu": "cpu", "gpus_per_machine": 2, "num_machines": 1}]}],
    }
    for said in (cores, named):
        fleet = fleet_of(said, "f", fast)
        assert [gpu.matmul_flop_per_s for gpu in fleet.gpu_types.values()] == [1e12]


def test_a_file_may_define_accelerators_also_in_place_of_packaged_ones() -> None:
    said = tree()
    own = {"memory_bytes": 10**10, "memory_bytes_per_s": 1e12, "matmul_flop_per_s": 1e14, "link_bytes_per_s": 1e10}
    said["gpu_types"] = [{"name": "ours", **own}, {"name": "L4", **own}]
    said["regions"][0]["machines"][0]["gpu"] = "ours"
    fleet = fleet_of(said, "f")
    assert fleet.gpu_types["ours"].efficiency == DEFAULT_EFFICIENCY
    assert fleet.gpu_types["L4"].memory_bytes == 10**10 != gpu_types()["L4"].memory_bytes


def _set(*path: str | int, value: Any) -> Change:
    def change(said: dict[str, Any]) -> None:
        node: Any = said
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


def _drop(*path: str | int) -> Change:
    def change(said: dict[str, Any]) -> None:
        node: Any = said
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return change


BAD: dict[str, tuple[Change, str]] = {
    "negative bandwidth": (
        _set("links", 0, "bytes_per_s", value=-1),
        r"links\.0\.bytes_per_s is -1, but must be a number from 1 to 1e\+13 or null",
    ),
    "bandwidth 0": (
        _set("links", 0, "bytes_per_s", value=0),
        r"links\.0\.bytes_per_s is 0, .*a number from 1 to 1e\+13 or null",
    ),
    "no bandwidth": (
        _drop("links", 0, "bytes_per_s"),
        "from a to b has no rate; give bytes_per_s or throughput_bits_per_s, .* nobody measured",
    ),
    "two rates": (_set("links", 0, "throughput_bits_per_s", value=8.0), "from a to b has both bytes_per_s and"),
    "NaN": (_set("links", 0, "bytes_per_s", value=math.nan), r"links\.0\.bytes_per_s is NaN, .*finite"),
    "infinity": (_set("links", 0, "rtt_s", value=math.inf), r"links\.0\.rtt_s is Infinity, .*finite"),
    "no round trip": (_drop("links", 0, "rtt_s"), r"links\.0\.rtt_s is missing"),
    "text for a number": (_set("links", 0, "rtt_s", value="fast"), r"links\.0\.rtt_s is \"fast\", .*number"),
    "unknown accelerator": (
        _set("regions", 1, "machines", 0, "gpu", value="L44"),
        "the region b: 'L44' is no known accelerator; nearest: L4,",
    ),
    "region twice": (_set("regions", 1, "name", value="a"), "the region a is there 2 times"),
    "unknown end": (_set("links", 0, "dst_region", value="c"), "names c, which is no region of this fleet; .* a, b"),
    "link to itself": (_set("links", 0, "dst_region", value="a"), "from a to a ends where it begins"),
    "no machines": (_set("regions", 1, "machines", value=[]), "the region b has no machines and no cores"),
    "zero machines": (
        _set("regions", 1, "machines", 0, "num_machines", value=0),
        r"regions\.1\.machines\.0\.num_machines is 0, .*1",
    ),
    "no fabric": (_drop("regions", 0, "fabric_bytes_per_s"), "the region a has 2 machines but no fabric_bytes_per_s"),
    "no regions": (_set("regions", value=[]), r"regions is \[\], but must be a list of at least 1"),
    "unknown key": (_set("regions", 0, "fabric", value=1), r"unknown key regions\.0\.fabric"),
    "unknown key of a link": (
        _set("links", 0, "throughput_bit_per_s", value=1),
        r"unknown key links\.0\.throughput_bit_per_s; did you mean links\.0\.throughput_bits_per_s\?",
    ),
    "unknown key of machines": (
        _set("regions", 1, "machines", 0, "isspot", value=True),
        r"unknown key regions\.1\.machines\.0\.isspot; did you mean regions\.1\.machines\.0\.is_spot\?",
    ),
    "a key of machines beside them": (
        _set("regions", 1, "num_machines", value=2),
        r"unknown key regions\.1\.num_machines; did you mean regions\.1\.machines\.0\.num_machines\?",
    ),
    "a key like no other": (
        _set("links", 0, "zzz", value=2),
        r"unknown key links\.0\.zzz; known keys: src_region, dst_region, rtt_s, bytes_per_s, throughput_bits_per_s, ",
    ),
    "no name": (_set("regions", 0, "name", value=""), r"regions\.0\.name is \"\", .* text of at least 1 characters"),
    "a region that is no mapping": (_set("regions", 0, value=3), r"regions\.0 is 3, .* a mapping with keys name, mach"),
    "empty": (dict.clear, "is empty; it must carry schema"),
    "no schema": (_drop("schema"), "must carry schema: periplus.fleet/1"),
    "a thin link": (_set("links", 0, "bytes_per_s", value=1e-60), r"bytes_per_s is 1e-60, .* from 1 to 1e\+13"),
    "a long round trip": (_set("links", 0, "rtt_s", value=1e300), r"rtt_s is 1e\+300, .* from 0 to 3600"),
    "an absurd price": (_set("links", 0, "usd_per_gbyte", value=1e300), r"usd_per_gbyte is 1e\+300, .* to 1e\+06"),
    "a slow fabric": (
        _set("regions", 0, "fabric_bytes_per_s", value=1e-9),
        "fabric_bytes_per_s is 1e-09, .* 1000",
    ),
    "a name of two lines": (
        _set("regions", 0, "name", value="a\nb"),
        r"regions\.0\.name is .*, .* without control",
    ),
    "a name that ends in space": (
        _set("regions", 0, "name", value="a "),
        r"regions\.0\.name is .*, .* without control",
    ),
    "a long name": (
        _set("regions", 0, "name", value="a" * 201),
        "name is .* of at most 200 characters",
    ),
    "a fabric of two lines": (
        _set("regions", 0, "machines", 0, "fabric", value="\x1b[31m"),
        "without control characters",
    ),
    "too many regions": (
        _set("regions", value=[{"name": f"r{i}", "num_cores": 1} for i in range(3000)]),
        r"regions has 3,000 items, but must be a list .* of at most 256 items",
    ),
    "negative price": (
        _set("regions", 1, "machines", 0, "usd_per_gpu_hour", value=-0.1),
        r"usd_per_gpu_hour is -0\.1, but must be a number from 0 to 1e\+06 or null",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_fleet_is_refused_with_what_is_wrong_and_where(name: str) -> None:
    change, message = BAD[name]
    said = tree()
    change(said)
    with pytest.raises(ConfigError, match=message) as caught:
        fleet_of(said, "fleet.yaml")
    assert all(line.startswith("fleet.yaml: ") for line in str(caught.value).splitlines())


def test_a_link_that_is_there_twice_is_refused_and_the_other_direction_is_another_link() -> None:
    said = tree()
    said["links"].append({"src_region": "b", "dst_region": "a", "rtt_s": 0.08, "bytes_per_s": 1e8})
    fleet_of(said, "f")
    said["links"].append(dict(said["links"][0], rtt_s=0.1))
    with pytest.raises(ConfigError, match="the link from a to b is there 2 times"):
        fleet_of(said, "f")


def test_of_many_contradictions_ten_are_said_and_the_others_counted() -> None:
    said = tree()
    said["links"] = [dict(said["links"][0], dst_region=f"x{i}") for i in range(40_000)]
    with pytest.raises(ConfigError) as caught:
        fleet_of(said, "f")
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "f: and 39,990 more of this kind"


def test_an_accelerator_whose_link_is_shared_by_a_switch_survives_its_text() -> None:
    """As measured cards are: with more devices a ring uses more links at once."""
    fleet = fleet_of(tree(), "f")
    own = replace(gpu_types()["A100-40GB-SXM"], memory_bytes=10**10)
    assert own.efficiency.link_sharing < 0
    changed = replace(fleet, gpu_types={**fleet.gpu_types, own.name: own})
    assert fleet_of(to_tree(changed), "f") == changed


def test_all_contradictions_come_at_once() -> None:
    said = tree()
    said["regions"][0]["machines"][0]["gpu"] = "A1000"
    said["links"][0]["dst_region"] = "c"
    with pytest.raises(ConfigError) as caught:
        fleet_of(said, "f")
    assert len(str(caught.value).splitlines()) == 2


_NUMBER = st.floats(1e6, 1e13)
_MAYBE = st.none() | _NUMBER


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    fit = Efficiency(**{field.name: draw(st.floats(0.01, 1)) for field in fields(Efficiency)})
    own = GpuType(
        name="own",
        memory_bytes=draw(st.integers(1, 1 << 40)),
        memory_bytes_per_s=draw(_NUMBER),
        matmul_flop_per_s=draw(_NUMBER),
        link_bytes_per_s=draw(_NUMBER),
        efficiency=fit,
        is_cpu=draw(st.booleans()),
    )
    types = {"own": own, **{name: gpu_types()[name] for name in ("L4", "T4")}}
    machines = st.builds(
        Machines,
        gpu=st.sampled_from(sorted(types)),
        gpus_per_machine=st.integers(1, 16),
        num_machines=st.integers(1, 99),
        usd_per_gpu_hour=st.none() | st.floats(0, 100),
        is_spot=st.booleans(),
        fabric=st.sampled_from(["", "x"]),
        network_bytes_per_s=_MAYBE,
    )
    text = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=5)
    names = draw(st.lists(text, min_size=1, max_size=4, unique=True))
    regions = tuple(
        Region(
            name=name,
            machines=tuple(draw(st.lists(machines, min_size=1, max_size=3))),
            fabric_bytes_per_s=draw(_NUMBER),
            fabric_latency_s=draw(st.floats(0, 1)),
            cross_fabric_bytes_per_s=draw(_MAYBE),
            wan_up_bytes_per_s=draw(_MAYBE),
            wan_down_bytes_per_s=draw(_MAYBE),
            is_public=draw(st.booleans()),
            num_cores=draw(st.integers(0, 99)),
            memory_bytes=draw(st.integers(0, 1 << 40)),
        )
        for name in names
    )
    link = st.builds(
        Link,
        src_region=st.just(""),
        dst_region=st.just(""),
        rtt_s=st.floats(0, 9),
        bytes_per_s=_NUMBER,
        age_s=st.none() | st.floats(0, 1e9),
        usd_per_gbyte=st.floats(0, 1),
    )
    links = tuple(
        replace(draw(link), src_region=a, dst_region=b) for a in names for b in names if a != b and draw(st.booleans())
    )
    used = {each.gpu for region in regions for each in region.machines} | {"own"}
    return Fleet(regions=regions, links=links, gpu_types={name: types[name] for name in sorted(used)})


@given(fleets())
@settings(deadline=None)
def test_every_fleet_survives_its_text(fleet: Fleet) -> None:
    assert fleet_of(json.loads(json.dumps(to_tree(fleet))), "f") == fleet


@pytest.mark.parametrize("path", sorted((EXAMPLES / "fleets").glob("*.yaml")), ids=lambda path: path.name)
def test_each_example_is_a_fleet_and_points_editors_to_the_schema(path: Path) -> None:
    fleet = load_fleet(path)
    assert fleet.num_gpus > 0
    assert path.read_text().startswith("# yaml-language-server: $schema=../../periplus/schemas/fleet.schema.json\n")
    assert json.loads((SCHEMAS / "fleet.schema.json").read_text()) == fleet_schema()


def test_each_key_says_what_it_means() -> None:
    schema = fleet_schema()
    sections = {"file": schema, **schema["$defs"]}
    keys = {
        f"{name}.{key}": field for name, section in sections.items() for key, field in section["properties"].items()
    }
    assert not [key for key, field in keys.items() if not field.get("description") and key != "file.schema"]
    assert all(section.get("description") for section in sections.values())
