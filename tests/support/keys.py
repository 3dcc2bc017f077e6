"""The job authority of every test that does not make one of its own: always the same key."""

from periplus.publication import JobAuthority

AUTHORITY = JobAuthority.from_private_bytes(bytes(range(32)))
