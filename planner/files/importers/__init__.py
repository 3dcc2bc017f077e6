"""Importers: turn measured tables, price lists and inventories into fleets. They are pure functions of parsed rows.

Only `loaders` reads files. Rows with missing values are left out and named. A figure
that no table states and the fleet needs is named in `guesses`.
"""
