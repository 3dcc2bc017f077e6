"""What the server of `dying.in_a_child` imports once, so that each child starts in milliseconds and not in seconds."""

import transformers  # noqa: F401

import trainer.app  # noqa: F401
