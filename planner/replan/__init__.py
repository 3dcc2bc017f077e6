"""What to change of a running plan when a link, the inventory or a region changes, and whether it is worth it."""
