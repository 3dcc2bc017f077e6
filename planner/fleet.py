"""Fleets as text: `periplus.fleet/1`, in JSON or YAML, to and from the planner's values."""

import dataclasses
from typing import Annotated, Any

from pydantic import Field

from periplus import config
from periplus.config import Config
from periplus.errors import ConfigError
from planner.problem import Fleet, Link, Region

SCHEMA = "periplus.fleet/1"

_Name = Annotated[str, Field(min_length=1)]


class _RegionEntry(Config):
    name: _Name
    num_cores: int = Field(ge=0)
    memory_bytes: int = Field(ge=0)


class _LinkEntry(Config):
    src_region: _Name
    dst_region: _Name
    rtt_s: float = Field(ge=0)
    throughput_bits_per_s: float = Field(gt=0)


class _FleetFile(Config):
    regions: tuple[_RegionEntry, ...]
    links: tuple[_LinkEntry, ...] = ()


def fleet_of(tree: object, source: str) -> Fleet:
    """The fleet that a parsed file holds. Raises: ConfigError naming `source`."""
    file = config.validate(_FleetFile, config.check_schema(tree, SCHEMA, source), source)
    fleet = Fleet(
        regions=tuple(Region(**entry.model_dump()) for entry in file.regions),
        links=tuple(Link(**entry.model_dump()) for entry in file.links),
    )
    if contradiction := fleet.contradiction():
        raise ConfigError(f"{source}: {contradiction}")
    return fleet


def to_tree(fleet: Fleet) -> dict[str, Any]:
    """The inverse of fleet_of."""
    return {"schema": SCHEMA, **dataclasses.asdict(fleet)}
