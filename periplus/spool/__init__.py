"""A bounded log of records on disk: what was accepted is there after a crash. See spool.py."""
