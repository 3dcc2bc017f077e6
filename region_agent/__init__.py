"""The region agent: one daemon a region. It starts workers, measures links and runs the gateway."""
