"""The members of a fleet: the coordinator's authority over them, and the commands by which people become members."""
