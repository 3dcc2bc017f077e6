"""Names of places: the network tables say `gcp:us-central1-a`, price lists `us-central1`.

A place is `cloud:region` or, where a table is of zones, `cloud:zone`. Joins are made on cloud and region.
"""

import re

_GCP_ZONE = re.compile(r"^(?P<region>[a-z]+-[a-z]+\d+)-[a-z]$")
_AWS_ZONE = re.compile(r"^(?P<region>[a-z]+-[a-z]+(-[a-z]+)?-\d+)[a-z]$")

DTFM_CITIES = {
    "California": "aws:us-west-1",
    "Frankfurt": "aws:eu-central-1",
    "Ireland": "aws:eu-west-1",
    "London": "aws:eu-west-2",
    "Ohio": "aws:us-east-2",
    "Oregon": "aws:us-west-2",
    "Seoul": "aws:ap-northeast-2",
    "Singapore": "aws:ap-southeast-1",
    "Sydney": "aws:ap-southeast-2",
    "Tokyo": "aws:ap-northeast-1",
    "Virginia": "aws:us-east-1",
}
"""AWS's regions by the names that DT-FM's table uses."""


def region_of(place: str) -> str:
    """`gcp:us-central1` of `gcp:us-central1-a`, `aws:us-east-1` of `aws:us-east-1a`; others as they are."""
    cloud, colon, name = place.partition(":")
    pattern = {"gcp": _GCP_ZONE, "aws": _AWS_ZONE}.get(cloud)
    match = pattern.match(name) if pattern else None
    return f"{cloud}{colon}{match['region'] if match else name}"


def cloud_of(place: str) -> str:
    """`aws` of `aws:us-east-1`; empty where a name says no cloud."""
    cloud, colon, _ = place.partition(":")
    return cloud if colon else ""
