"""The job authority of every test that does not make one of its own: always the same key."""

from periplus.publication import JobAuthority

JOB_SECRET = "5e" * 32
"""The secret of every job of a test."""

AUTHORITY = JobAuthority.from_private_bytes(bytes(range(32)))
