"""The command line of Periplus whose local fleets show and want no token: what a token costs is measured with it."""

from coordinator.local_fleet import fleet
from periplus.__main__ import main

if __name__ == "__main__":
    fleet.LocalFleet._token = ()  # type: ignore[assignment]
    main()
