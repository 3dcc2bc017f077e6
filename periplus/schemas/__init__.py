"""Schemas of the files that people write, for editors, and `capabilities.json`, what the runtime can execute today.

`make generate` writes the JSON schemas from the classes that parse the files; `capabilities.json` is edited by hand,
with a test that runs what it claims. They are resources of the wheel: nothing here is code, and whoever reads them
opens them through `importlib.resources`.
"""
