"""Explanations of plans for people and programs.

- `lines`: what runs where, what to expect and what is proved.
- `counterfactuals`, `effects`: what would shorten the step, and why a region is unused.
- `difference`: two plans side by side. `comparison`: the results of several methods.

Values go in, text or plain JSON values come out. Nothing is printed here.
"""
