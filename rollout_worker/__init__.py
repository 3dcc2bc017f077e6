"""The rollout worker: turns leases into trajectories with the newest weights that it has proven."""
