"""The record of what was trained on what, written so that somebody else can check it: docs/audit.md."""
