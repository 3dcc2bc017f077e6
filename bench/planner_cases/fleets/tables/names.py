"""Names of places. Network tables say `gcp:us-central1-a` where price lists say `us-central1`.

A place is `cloud:region`, or `cloud:zone` if a table is by zone. Tables are joined by cloud and region.
"""

import re

_GCP_ZONE = re.compile(r"^(?P<region>[a-z]+-[a-z]+\d+)-[a-z]$")
"""Pattern of a zone of GCP, with its region."""
_AWS_ZONE = re.compile(r"^(?P<region>[a-z]+-[a-z]+(-[a-z]+)?-\d+)[a-z]$")
"""Pattern of a zone of AWS, with its region."""


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
