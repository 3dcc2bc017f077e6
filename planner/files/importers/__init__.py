"""Importers: turn measured tables, price lists and inventories into fleets. They are pure functions of parsed rows.

Only `loaders` reads files. Rows with missing values are left out and named; missing values are never guessed. If a
published setting leaves a figure open, the figure that was chosen is named in `guesses`.
"""
