"""Generated from proto/ by `make generate`; never edited."""
