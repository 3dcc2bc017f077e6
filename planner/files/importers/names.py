"""Names of places. Network tables say `gcp:us-central1-a` where price lists say `us-central1`.

A place is `cloud:region`, or `cloud:zone` if a table is by zone. Tables are joined by cloud and region.
"""

import re

_GCP_ZONE = re.compile(r"^(?P<region>[a-z]+-[a-z]+\d+)-[a-z]$")
"""Pattern of a zone of GCP, with its region."""
_AWS_ZONE = re.compile(r"^(?P<region>[a-z]+-[a-z]+(-[a-z]+)?-\d+)[a-z]$")
"""Pattern of a zone of AWS, with its region."""

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
"""AWS region of each city in DT-FM's table."""


def region_of(place: str) -> str:
    """Return `gcp:us-central1` for `gcp:us-central1-a` and `aws:us-east-1` for `aws:us-east-1a`; others unchanged."""
    cloud, colon, name = place.partition(":")
    pattern = {"gcp": _GCP_ZONE, "aws": _AWS_ZONE}.get(cloud)
    match = pattern.match(name) if pattern else None
    return f"{cloud}{colon}{match['region'] if match else name}"


def cloud_of(place: str) -> str:
    """Return `aws` for `aws:us-east-1`; empty if the name has no cloud."""
    cloud, colon, _ = place.partition(":")
    return cloud if colon else ""
