"""The exact method: placements with a bound that no placement of the plan space beats (`search`)."""
