"""The address that a process dials in order to reach a service, which may differ from the one that the service states.

On a real network both are the same (`DirectResolver`). Behind a network emulator or a proxy they are not. A process
states its own addresses once and resolves each address before it dials it, and knows nothing else of what lies between.
"""

from typing import Protocol


class AddressResolver(Protocol):
    """Resolver of the addresses that one process serves and dials.

    Both methods raise Unreachable or TimedOut if whoever resolves does not answer, and NotFound or ConfigError if it
    refuses the address.
    """

    async def announce(self, address: str) -> None:
        """Declare that this process serves `address`, spelled as others dial it."""

    async def resolve(self, address: str) -> str:
        """Return the address to dial in order to reach `address`."""


class DirectResolver:
    """The resolver of a real network: every address is dialled as it is."""

    async def announce(self, address: str) -> None:
        """Do nothing: others dial the address itself."""

    async def resolve(self, address: str) -> str:
        """Return the address."""
        return address
