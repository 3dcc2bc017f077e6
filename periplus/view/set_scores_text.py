"""The scores of an evaluation as text."""

from collections.abc import Mapping

from periplus.view import units


def scores_text(values: Mapping[str, float]) -> str:
    """Return a line such as `mean@4 40.0 % (35.1 % to 45.1 %), pass@4 61.0 % (...), 200 problems, version 20 to 22`.

    `values` are those of a record of the set.
    """
    oldest, newest = values.get("oldest_version"), values.get("newest_version")
    versions = "" if oldest is None else f"version {oldest:.0f}" + ("" if newest == oldest else f" to {newest:.0f}")
    counts = (
        f"{units.short(values.get('num_prompts'))} problems",
        *(
            f"{values[name]:.0f} {what}"
            for name, what in (
                ("truncated_samples", "truncated"),
                ("missing_samples", "missing"),
                ("unjudged_samples", "not judged"),
            )
            if values.get(name)
        ),
        versions,
    )
    rates = (
        _rate(values, "mean_at_k", f"mean@{values.get('samples_per_prompt', 1):.0f}"),
        _rate(values, "pass_at_k", f"pass@{values.get('k', 1):.0f}"),
        _reward(values),
    )
    return ", ".join(word for word in (*rates, *counts) if word)


def held_out_text(values: Mapping[str, float]) -> str:
    """Return a text such as `accuracy 40.0 %, mean reward 0.412`, of what is known of an evaluation."""
    accuracy = values.get("accuracy")
    missing = values.get("missing_samples")
    words = (
        "" if accuracy is None else f"accuracy {units.percent(accuracy)}",
        _reward(values) or ("" if accuracy is not None else "no sample was judged"),
        f"{missing:.0f} missing" if missing else "",
    )
    return ", ".join(filter(None, words))


def _reward(values: Mapping[str, float]) -> str:
    reward = values.get("eval_reward_mean")
    return "" if reward is None else f"mean reward {reward:.3g}"


def _rate(values: Mapping[str, float], name: str, shown: str) -> str:
    if name not in values:
        return ""  # what is right is not known
    low, high = units.percent(values.get(f"{name}_low")), units.percent(values.get(f"{name}_high"))
    return f"{shown} {units.percent(values.get(name))} ({low} to {high})"
