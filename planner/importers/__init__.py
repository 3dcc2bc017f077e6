"""From measured tables, price lists and inventories to fleets: pure functions of parsed rows.

`loaders` reads the files. What a row lacks is left out and named, never guessed; where a published setting leaves a
figure open, the one taken stands in `guesses`.
"""
