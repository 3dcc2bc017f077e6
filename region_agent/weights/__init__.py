"""A gateway's weights: what it keeps of a job's publications on disk, and what it makes from that for readers."""
