"""The address of a gateway that cannot be dialled, by way of a gateway that relays: `relay://HOST:PORT/RELAY/REGION`.

It stands wherever the address of a gateway does, so that only whoever dials must tell the two apart.
"""

from dataclasses import dataclass

SCHEME = "relay://"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedAddress:
    """The gateway of `region`, which listens at the gateway of `relay_region` at `relay_address` (host:port)."""

    relay_address: str
    relay_region: str
    region: str

    @classmethod
    def of(cls, address: str) -> "RelayedAddress | None":
        """Return a relayed address from its text, or None if it is another one."""
        if not address.startswith(SCHEME) or address.count("/") != SCHEME.count("/") + 2:
            return None
        relay_address, relay_region, region = address.removeprefix(SCHEME).split("/")
        return cls(relay_address=relay_address, relay_region=relay_region, region=region)

    def __str__(self) -> str:
        return f"{SCHEME}{self.relay_address}/{self.relay_region}/{self.region}"
