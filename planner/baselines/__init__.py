"""What the searches are compared with: today's static layouts, chance, and a genetic algorithm as it comes in a box.

Each family was written down, in the docstring of its module, before anything was compared with it: `verl`, `streamrl`
(`static_pools`), `random` (`random_search`), `genetic`. All are judged by the one oracle, and search the one plan space
or a named part of it.
"""
