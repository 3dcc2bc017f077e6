"""The keys of a configuration, for tests of what documents and messages name."""

from periplus.config.loading import Section, _paths


def dotted_keys(model: Section) -> tuple[str, ...]:
    """Return each dotted key of the model, such as `sampling.temperature`, and its sections; none inside lists."""
    return tuple(".".join(path) for path in _paths(model, lambda path: None))
