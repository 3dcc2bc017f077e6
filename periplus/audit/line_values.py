"""Values of several fields of the journal's lines: how each is written as JSON, and read back with all checks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from periplus.audit.checked_values import checked_integer
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun


def hex_of(num_bytes: int) -> Callable[[Any], bytes]:
    """Return a function that reads so many bytes from hex, in lower case."""

    def of_json(value: Any) -> bytes:
        digest = bytes.fromhex(value)
        if len(digest) != num_bytes or digest.hex() != value:
            raise ValueError(f"{num_bytes} bytes in hex expected, not {value!r:.80}")
        return digest

    return of_json


digest16 = hex_of(16)
digest32 = hex_of(32)
signature64 = hex_of(64)


def pair_of(value: Any) -> tuple[int, int]:
    """Return the two integers of a list."""
    first, second = value
    return checked_integer(first), checked_integer(second)


def list_of(of_item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that reads a list, each item by `of_item`."""

    def of_json(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise ValueError(f"a list expected, not {value!r:.60}")
        return tuple([of_item(item) for item in value])

    return of_json


def optional_of(of_value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that reads null as None, and else by `of_value`."""
    return lambda value: None if value is None else of_value(value)


def policy_run(value: Any) -> PolicyRun:
    """Return a policy run of its list of numbers."""
    # A run that kept the cache of older policies has a fourth number, 1; earlier journals have only runs of three.
    fork, version, num_tokens, *kept = value
    if kept not in ([], [1]) or any(type(each) is not int for each in kept):
        raise ValueError(f"a policy run of 3 numbers, or of 4 that end with 1, expected, not {value!r:.60}")
    policy = Policy(checked_integer(fork), checked_integer(version))
    return PolicyRun(policy, checked_integer(num_tokens), kept_kv=bool(kept))


def ages_of(value: Any) -> Mapping[int, int]:
    """Return a count of tokens by age, whose keys must rise."""
    ages = {int(age): checked_integer(tokens) for age, tokens in value.items()}
    if [str(age) for age in sorted(ages)] != list(value):
        raise ValueError(f"tokens by age expected, not {value!r:.60}")
    return ages


def digest_text(value: bytes | None) -> str:
    """Return a digest or None as JSON."""
    return "null" if value is None else f'"{value.hex()}"'


def integer_text(value: int | None) -> str:
    """Return an integer or None as JSON."""
    return "null" if value is None else str(value)


def policy_text(value: Policy | None) -> str:
    """Return a policy or None as JSON."""
    return "null" if value is None else f"[{value.fork},{value.version}]"


def run_text(run: PolicyRun) -> str:
    """Return a policy run as JSON."""
    return f"[{run.policy.fork},{run.policy.version},{run.num_tokens}{',1' if run.kept_kv else ''}]"


def runs_text(value: Sequence[PolicyRun]) -> str:
    """Return policy runs as JSON."""
    return f"[{','.join(map(run_text, value))}]"


def ages_text(value: Mapping[int, int]) -> str:
    """Return counts of tokens by age as JSON."""
    return "{" + ",".join([f'"{age}":{value[age]}' for age in sorted(value)]) + "}"
