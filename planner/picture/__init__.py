"""Pictures of plans as SVG: placement by region, a played step, quality against time, a fleet's links.

Each is one document that refers to nothing outside itself, with a title and a description for those who cannot see it,
in light or dark as the reader's system is.
"""
